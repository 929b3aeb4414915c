"""Ports of an engine: step executor, mover of KV blocks, shared cache."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from serving.ids import BlockHash, BlockId
from serving.values.kv_hints import BlockClaim
from serving.values.layer_split import FetchedRows
from serving.values.pool_outcome import FetchReport, StoreReport
from serving.values.sequence import HandoffTicket
from serving.values.step_plan import StepPlan, StepResult


class StepExecutor(Protocol):
    """Computes steps. One call per step; real (torch, native) or simulated.

    The call blocks until the step is done and is always made from the same thread. An executor holds the KV
    arena and nothing else about sequences: all state it needs arrives in the plan.
    """

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step.

        Raises: ServingError subclasses only; the engine then fails the plan's sequences, not the process.
        Effects: writes the fed tokens' KV into the blocks of each block table.
        """
        ...


@runtime_checkable
class PreparingExecutor(StepExecutor, Protocol):
    """An executor that prepares a step before its tokens are known, so that it starts when the previous one ends."""

    def prepare(self, plan: StepPlan) -> Callable[[], StepResult] | None:
        """Lay out the plan that may follow the running one; its tokens are `UNKNOWN`.

        Called from another thread than `execute`, while that runs.

        Returns: a function that runs it as `execute` would, if it is called directly after the previous step; it may
            be discarded. None if such a plan needs more than the tokens.
        """
        ...


@runtime_checkable
class GroupExecutor(StepExecutor, Protocol):
    """The executor of a rank in a group, whose steps depend on its peers' participation and vice versa."""

    def serve(self, timeout_s: float) -> None:
        """Serve peers' rows while this rank has no step.

        Called by the thread of `execute`, between its calls; peers wait while the thread does neither.

        Returns: after the timeout [s], or after a call of `wake`, between two results.
        Raises: GroupError, as `execute`.
        """
        ...

    def wake(self) -> None:
        """End `serve` soon. Any thread; a call before `serve` ends the next one."""
        ...


class KvTransport(Protocol):
    """Moves KV blocks between instances: registers them on the source, pulls them on the target."""

    def register(
        self, ticket_id: str, blocks: Sequence[BlockId], hashes: Sequence[BlockHash], computed_tokens: int
    ) -> HandoffTicket:
        """Describe `blocks` so that another instance can pull them; the caller keeps them pinned until released.

        Args:
            blocks: the sequence's block table, cut to what `computed_tokens` need.
            hashes: prefix hashes of its full blocks, in order (may be shorter than `blocks`).
        """
        ...

    def pull(self, ticket: HandoffTicket, first_block: int, blocks: Sequence[BlockId]) -> int:
        """Copy the ticket's blocks `first_block ...` into the own arena blocks `blocks`, verifying checksums.

        Returns: bytes moved.
        Raises: HandoffChecksumError, HandoffExpiredError, HandoffError (unreachable, deadline, layout differs).
        """
        ...


class ContextCache(Protocol):
    """The KV-cache pool for one instance. Never raises: errors are in the report and count as misses.

    Several fetches and one store may run concurrently, each in a separate thread.
    """

    def fetch(
        self, namespace: str, hashes: Sequence[BlockHash], blocks: Sequence[BlockId], rows: FetchedRows | None = None
    ) -> FetchReport:
        """Fill own arena blocks, from the first on, with the blocks of these hashes, verifying each.

        Args:
            hashes: consecutive links of one prefix-hash chain; earlier blocks are already present.
            blocks: as many destinations; content beyond the report's count is undefined.
            rows: which of the found blocks to read; the report then counts all found blocks, or none. None = all.
        """
        ...

    def store(self, namespace: str, hashes: Sequence[BlockHash], blocks: Sequence[BlockId]) -> StoreReport:
        """Publish full, computed blocks; their bytes must not change during the call."""
        ...

    def claim(self, namespace: str, claims: Sequence[BlockClaim]) -> None:
        """Claim stored blocks for sessions. In the thread of the stores, after those that it concerns."""
        ...
