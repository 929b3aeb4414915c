"""Input and output of an engine: events and effects. All values are frozen.

Orders of gateways and news for them cross links, and so stand in `serving.values`; here is what its driver adds.
"""

from collections.abc import Callable
from enum import Enum

from serving.ids import BlockHash, BlockId, SequenceId
from serving.values.layer_split import FetchedRows
from serving.values.news import Adopted, Leaving, Lost, Refused, Tokens, Value
from serving.values.orders import Order, Release
from serving.values.pool_outcome import FetchReport
from serving.values.sequence import HandoffTicket
from serving.values.step_plan import StepPlan, StepResult

# ---- events --------------------------------------------------------------------------------------------------------


class Drain(Value, frozen=True, gc=False):
    """Refuse new sequences from now on; those inside go on."""


class MoveOut(Value, frozen=True, gc=False):
    """Drain, and let what is inside now go on elsewhere, if there is an elsewhere."""


class NextStep(Value, frozen=True, gc=False):
    """No step runs: what is to be done now? Told after any other event, and when it was asked for by `WakeAt`."""


class StepDone(Value, frozen=True, gc=False):
    """The plan in flight was executed."""

    result: StepResult


class StepFailed(Value, frozen=True, gc=False):
    """The plan in flight could not be executed."""

    reason: str


class Foresee(Value, frozen=True, gc=False):
    """A step runs: which one comes behind it, if all that is missing is the tokens that this one draws?"""


class StepFollowed(Value, frozen=True, gc=False):
    """The plan in flight was executed; the one that was foreseen runs since it ended."""

    result: StepResult


class PullsNow(Value, frozen=True, gc=False):
    """Which pulls can start although a step may be running? `NextStep` asks that, too."""


class PullDone(Value, frozen=True, gc=False):
    """A pull ended, and failed if there is a reason. It took `seconds` of the engine's time."""

    sequence_id: SequenceId
    moved_bytes: int = 0
    failure: str | None = None
    seconds: float = 0.0


class FetchDone(Value, frozen=True, gc=False):
    """The KV-cache pool gave what it had of a prompt, which may be nothing."""

    sequence_id: SequenceId
    report: FetchReport


class StoreDone(Value, frozen=True, gc=False):
    """A store order was carried out, or given up."""

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
"""Events about no sequence that waits or computes: a step that was foreseen before them stands."""


def failure(error: Exception) -> str:
    """An error as events tell it: its name and its text."""
    return f"{type(error).__name__}: {error}"


# ---- effects -------------------------------------------------------------------------------------------------------


class HandoffReady(Value, frozen=True, gc=False):
    """The driver registers `blocks` and sends the ticket, with the first token of a prompt, to the gateway.

    Prefill is done; or the sequence was decoding and the instance drains: then no tokens come with it.

    Args:
        first: the tokens, and what is told once.
        blocks: block table, cut to what `computed_tokens` need; pinned until released, cancelled or expired.
        hashes: prefix hashes of the full blocks, in order; empty without prefix reuse.
        computed_tokens: tokens whose KV the blocks hold: all but the newest.
        drafts: guesses of what follows `first`; the ticket carries them to the decode instance.
    """

    first: Tokens
    ticket_id: str
    blocks: tuple[BlockId, ...]
    hashes: tuple[BlockHash, ...]
    computed_tokens: int
    drafts: tuple[int, ...] = ()

    @property
    def sequence_id(self) -> SequenceId:
        """The sequence."""
        return self.first.sequence_id


class HandoffEnd(Enum):
    """Why held blocks were given back."""

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
    """Ask the KV-cache pool for these consecutive blocks of a prompt, then report `FetchDone`.

    Args:
        rows: says which of those that are found are to be read; the others need not be there, and share their places
            with these. None = all.
    """

    sequence_id: SequenceId
    namespace: str
    hashes: tuple[BlockHash, ...]
    blocks: tuple[BlockId, ...]
    rows: FetchedRows | None = None


class StoreOrder(Value, frozen=True, gc=False):
    """Publish these full blocks in the KV-cache pool, in any order, then report `StoreDone`."""

    order_id: int
    namespace: str
    hashes: tuple[BlockHash, ...]
    blocks: tuple[BlockId, ...]


class Run(Value, frozen=True, gc=False):
    """Execute this plan, then report `StepDone` or `StepFailed`."""

    plan: StepPlan


class Foreseen(Value, frozen=True, gc=False):
    """The answer to `Foresee`, unless the next step may be another one; see `plan_following`.

    The driver may run it right behind the one in flight, and say so with `StepFollowed`; or forget it.
    """

    plan: StepPlan


class WakeAt(Value, frozen=True, gc=False):
    """Nothing is to be computed: without other events, ask again at this engine time [s]."""

    at: float


EngineNews = Tokens | HandoffReady | HandoffClosed | Adopted | Lost | Refused | Leaving
EngineOrder = PullOrder | FetchOrder | StoreOrder | Run | Foreseen | WakeAt
EngineEffect = EngineNews | EngineOrder
EngineOn = Callable[[EngineEvent, float], list[EngineEffect]]
"""`InstanceEngine.on`, or one that records it."""
