"""Port between the HTTP routes and the KV-cache pool's memory servers: list, usage, deletion and audit.

Routes check permissions; an implementation only sends the requests. A server that misses its deadline is reported with
the responses of the others, which do not wait for it.
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
    """The pool as a gateway's client. Requests to servers never raise: unreachable servers are in `silent`."""

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
