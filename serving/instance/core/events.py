"""Input and output of an engine: events and effects. All values are frozen.

Commands of gateways and events for them cross links and are therefore in `serving.values`; this module has the
driver's.
"""

from collections.abc import Callable
from enum import Enum

from serving.ids import BlockHash, BlockId, SequenceId
from serving.values.kv_hints import BlockClaim
from serving.values.layer_split import FetchedRows
from serving.values.news import Adopted, Leaving, Lost, Refused, Tokens, Value
from serving.values.orders import Order, Release
from serving.values.pool_outcome import FetchReport
from serving.values.sequence import NEVER_MASKED, HandoffTicket
from serving.values.step_plan import StepPlan, StepResult

# ---- events --------------------------------------------------------------------------------------------------------


class Drain(Value, frozen=True, gc=False):
    """Refuse new sequences from now on; existing ones continue."""


class MoveOut(Value, frozen=True, gc=False):
    """Drain, and move the existing sequences to other instances if possible."""


class NextStep(Value, frozen=True, gc=False):
    """No step is running: request the next action. Sent after any other event, and at the time of a `WakeAt`."""


class StepDone(Value, frozen=True, gc=False):
    """The plan in flight was executed."""

    result: StepResult


class StepFailed(Value, frozen=True, gc=False):
    """The plan in flight could not be executed."""

    reason: str


class Foresee(Value, frozen=True, gc=False):
    """A step is running: request the step after it, if only the tokens that it samples are missing."""


class StepFollowed(Value, frozen=True, gc=False):
    """The plan in flight was executed; the foreseen one has been running since then."""

    result: StepResult


class PullsNow(Value, frozen=True, gc=False):
    """Request the pulls that can start, even while a step runs; `NextStep` includes this."""


class PullDone(Value, frozen=True, gc=False):
    """A pull succeeded, or failed with a reason. It took `seconds` of the engine's time."""

    sequence_id: SequenceId
    moved_bytes: int = 0
    failure: str | None = None
    seconds: float = 0.0


class FetchDone(Value, frozen=True, gc=False):
    """The KV-cache pool delivered the blocks that it had for a prompt, possibly none."""

    sequence_id: SequenceId
    report: FetchReport


class StoreDone(Value, frozen=True, gc=False):
    """A store order was executed or abandoned."""

    order_id: int


EngineEvent = (
    Order
    | Drain
    | MoveOut
    | NextStep
    | StepDone
    | StepFailed
    | Foresee
    | StepFollowed
    | PullsNow
    | PullDone
    | FetchDone
    | StoreDone
)


Quiet = Release | StoreDone
"""Events that affect no waiting or computing sequence: a step foreseen before them stays valid."""


def failure(error: Exception) -> str:
    """An error as text in events: its name and its message."""
    return f"{type(error).__name__}: {error}"


# ---- effects -------------------------------------------------------------------------------------------------------


class HandoffReady(Value, frozen=True, gc=False):
    """The driver registers `blocks` and sends the ticket, with the first token of a prompt, to the gateway.

    Either prefill is done, or the sequence was decoding and the instance drains: then the event has no tokens.

    Args:
        first: the tokens, and facts reported once per sequence.
        blocks: block table, cut to what `computed_tokens` need; pinned until released, cancelled or expired.
        hashes: prefix hashes of the full blocks, in order; empty without prefix reuse.
        computed_tokens: tokens whose KV the blocks hold: all but the latest.
        drafts: draft tokens after `first`; the ticket carries them to the decode instance.
        masked_from: see `HandoffTicket.masked_from`.
    """

    first: Tokens
    ticket_id: str
    blocks: tuple[BlockId, ...]
    hashes: tuple[BlockHash, ...]
    computed_tokens: int
    drafts: tuple[int, ...] = ()
    masked_from: int = NEVER_MASKED

    @property
    def sequence_id(self) -> SequenceId:
        return self.first.sequence_id


class HandoffEnd(Enum):
    """Why held blocks were released."""

    RELEASED = "released"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class HandoffClosed(Value, frozen=True, gc=False):
    """The blocks of a ticket may be overwritten from now on: the driver withdraws the registration."""

    sequence_id: SequenceId
    ticket_id: str
    end: HandoffEnd


class PullOrder(Value, frozen=True, gc=False):
    """Pull the ticket's blocks `first_block ...` into `blocks`, then report `PullDone`."""

    sequence_id: SequenceId
    ticket: HandoffTicket
    first_block: int
    blocks: tuple[BlockId, ...]


class FetchOrder(Value, frozen=True, gc=False):
    """Fetch these consecutive blocks of a prompt from the KV-cache pool, then report `FetchDone`.

    Args:
        rows: which of the found blocks to read; the others may be absent, and share their destinations with these.
            None = all.
    """

    sequence_id: SequenceId
    namespace: str
    hashes: tuple[BlockHash, ...]
    blocks: tuple[BlockId, ...]
    rows: FetchedRows | None = None


class StoreOrder(Value, frozen=True, gc=False):
    """Publish these full blocks in the KV-cache pool, in any order, then claim, then report `StoreDone`.

    Args:
        claim: of these blocks and others of the same sequence that were ordered before; None = nothing to claim.
    """

    order_id: int
    namespace: str
    hashes: tuple[BlockHash, ...]
    blocks: tuple[BlockId, ...]
    claim: BlockClaim | None = None


class Run(Value, frozen=True, gc=False):
    """Execute this plan, then report `StepDone` or `StepFailed`."""

    plan: StepPlan


class Foreseen(Value, frozen=True, gc=False):
    """Response to `Foresee`, unless the next step is uncertain; see `plan_following`.

    The driver may run it directly after the one in flight and report `StepFollowed`, or discard it.
    """

    plan: StepPlan


class WakeAt(Value, frozen=True, gc=False):
    """No step to run: without other events, send `NextStep` at this engine time [s]."""

    at: float


EngineMessage = Tokens | HandoffReady | HandoffClosed | Adopted | Lost | Refused | Leaving
EngineOrder = PullOrder | FetchOrder | StoreOrder | Run | Foreseen | WakeAt
EngineEffect = EngineMessage | EngineOrder
EngineOn = Callable[[EngineEvent, float], list[EngineEffect]]
"""`InstanceEngine.on`, or one that records it."""
