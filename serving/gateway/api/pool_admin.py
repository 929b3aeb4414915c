"""The port between the HTTP surface and the KV-cache pool's memory servers: who they are, what they hold, is it sound.

Routes decide who may ask what; an implementation only asks. No answer of a server within its deadline is an answer
too: it is told beside the others, never waited for.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from serving.values.pool_view import NamespaceRecord, PoolView


@dataclass(frozen=True, slots=True)
class ServerAnswers:
    """Answers of the pool's servers to one question.

    Args:
        by_server: the answer of each, by its name in the ring.
        silent: why each of the others did not answer.
    """

    by_server: dict[str, dict[str, Any]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


class PoolAdmin(Protocol):
    """The pool, seen from a gateway. Questions to servers never raise: those that cannot be asked are in `silent`."""

    def view(self) -> PoolView:
        """The pool as last heard, with the facts that each server announces."""
        ...

    async def usage(self) -> ServerAnswers:
        """Holdings of each namespace on each server: {namespace: {"dram_bytes", "ssd_bytes", "entries"}}."""
        ...

    async def forget(self, namespace: str) -> ServerAnswers:
        """Delete all that a namespace has in the pool: {"bytes", "entries"} that each server deleted."""
        ...

    async def audit(self, *, repair: bool) -> ServerAnswers:
        """Let each server prove that its ledger, memory and SSD folder agree; `repair` removes what is wrong."""
        ...

    async def set_namespace(self, record: NamespaceRecord) -> None:
        """Give a namespace another quota and weight, in force within two seconds.

        Raises: UnavailableError if the pool's controller does not answer.
        """
        ...

    async def drop_namespace(self, name: str) -> None:
        """Take a namespace off the list.

        Raises: UnavailableError if the pool's controller does not answer.
        """
        ...
