"""What an engine says: news for the gateways, orders for its driver, and its state in numbers.

All values are frozen. Positions count output tokens from the start of the sequence, resumed output included, so that a
receiver can drop what it already has and notice what it missed.
"""

from dataclasses import dataclass
from enum import Enum

from msgspec import Struct

from serving.ids import BlockHash, BlockId, SequenceId
from serving.policy.request import DraftUse, FinishReason, HandoffTicket, PoolUse, TokenLogprobs
from serving.policy.step_plan import StepPlan


class TokensEvent(Struct, frozen=True, gc=False):
    """New tokens of a sequence, its end, or both.

    Args:
        position: output tokens before these ones.
        tokens: may be empty when only the end is told (deadline, `max_tokens = 0`).
        logprobs: one per token when asked, else empty.
        prompt_logprobs: for prompt positions 1 ...; first event only, when asked.
        cached_tokens: tokens whose KV was not computed: found here or pulled; first event only.
        pool: what the KV-cache pool had to do with it; first event only, None without a pool.
        finish_reason: set on the last event.
        drafts: what became of the step's guesses; None if there were none.
        waited_s: engine time from its coming here to its first admission; first event only.
        preempted: times that it had to give its blocks back here since the last event.
    """

    sequence_id: SequenceId
    position: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int | None = None
    pool: PoolUse | None = None
    finish_reason: FinishReason | None = None
    drafts: DraftUse | None = None
    waited_s: float | None = None
    preempted: int = 0


class HandoffReadyEvent(Struct, frozen=True, gc=False):
    """The driver registers `blocks` and sends the ticket, with the first token of a prompt, to the gateway.

    Prefill is done; or the sequence was decoding and the instance drains: then no tokens come with it.

    Args:
        blocks: block table, cut to what `computed_tokens` need; pinned until released, cancelled or expired.
        hashes: prefix hashes of the full blocks, in order; empty without prefix reuse.
        computed_tokens: tokens whose KV the blocks hold: all but the newest.
        position, tokens, logprobs, prompt_logprobs, cached_tokens, pool, waited_s, preempted: as in `TokensEvent`.
        drafts: guesses of what follows `tokens`; the ticket carries them to the decode instance.
    """

    sequence_id: SequenceId
    ticket_id: str
    blocks: tuple[BlockId, ...]
    hashes: tuple[BlockHash, ...]
    computed_tokens: int
    position: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int | None = None
    pool: PoolUse | None = None
    drafts: tuple[int, ...] = ()
    waited_s: float | None = None
    preempted: int = 0


class HandoffEnd(Enum):
    """Why held blocks were given back."""

    RELEASED = "released"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class HandoffClosedEvent(Struct, frozen=True, gc=False):
    """The blocks of a ticket may be overwritten from now on: the driver withdraws the registration."""

    sequence_id: SequenceId
    ticket_id: str
    end: HandoffEnd


class AdoptedEvent(Struct, frozen=True, gc=False):
    """The blocks are here: the source may free its copy."""

    sequence_id: SequenceId
    ticket_id: str


class HandoffFailedEvent(Struct, frozen=True, gc=False):
    """The blocks could not be pulled; the sequence is forgotten here and must be prefilled again."""

    sequence_id: SequenceId
    ticket_id: str
    reason: str


class FailedEvent(Struct, frozen=True, gc=False):
    """The instance failed on this sequence and has forgotten it."""

    sequence_id: SequenceId
    reason: str


class LeavingEvent(Struct, frozen=True, gc=False):
    """The engine drains and had rather be rid of this sequence, but goes on with it until it is cancelled.

    Args:
        handoff: it waits to be pulled here, else to be computed.
    """

    sequence_id: SequenceId
    handoff: bool


EngineEvent = (
    TokensEvent
    | HandoffReadyEvent
    | HandoffClosedEvent
    | AdoptedEvent
    | HandoffFailedEvent
    | FailedEvent
    | LeavingEvent
)


class PullOrder(Struct, frozen=True, gc=False):
    """Pull the ticket's blocks `first_block ...` into `blocks`, then report `pull_finished`."""

    sequence_id: SequenceId
    ticket: HandoffTicket
    first_block: int
    blocks: tuple[BlockId, ...]


class FetchOrder(Struct, frozen=True, gc=False):
    """Ask the KV-cache pool for these consecutive blocks of a prompt, then report `fetch_finished`."""

    sequence_id: SequenceId
    namespace: str
    hashes: tuple[BlockHash, ...]
    blocks: tuple[BlockId, ...]


class StoreOrder(Struct, frozen=True, gc=False):
    """Publish these full blocks in the KV-cache pool, in any order, then report `store_finished`."""

    order_id: int
    namespace: str
    hashes: tuple[BlockHash, ...]
    blocks: tuple[BlockId, ...]


class EngineAction(Struct, frozen=True, gc=False):
    """What the driver does next.

    Args:
        pulls, fetches, stores: start these, in any order, beside the step.
        plan: execute this, then report `step_finished` or `step_failed`; None = nothing to compute.
        wake_at: without other news ask again at this engine time [s]; None = only news can change anything.
    """

    pulls: tuple[PullOrder, ...]
    plan: StepPlan | None
    wake_at: float | None
    fetches: tuple[FetchOrder, ...] = ()
    stores: tuple[StoreOrder, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One engine in numbers. Counters (`*_total`) only grow; the rest is the state now.

    Args:
        at_s: engine time of this snapshot [s].
        waiting: sequences without blocks: new, preempted, or handed off and not admitted yet.
        fetching: sequences whose beginnings are being fetched from the KV-cache pool.
        storing_blocks: blocks that wait to be copied into the pool.
        queued_tokens: known tokens that are still to be computed.
        kv_blocks_cached: free blocks that a prefix could still match.
        pulled_tokens_total, lost_tokens_total: prompt tokens that the pool gave, and that it failed to give.
        drafts_total: steps of single sequences that verified guesses; draft_tokens_total: the guesses.
        accepted_drafts_total: guesses that were right and used, by position; empty without speculation.
        unstored_blocks_total: full blocks that were not offered to the pool because too many were waiting.
        last_progress_s: engine time of the last step, or of the moment when work appeared [s].
        steps_total: steps executed; failed ones and the one that runs are not among them.
        steps_by_tokens: those, by the tokens that each computed from prompts and sampled: one number for each of
            `ITERATION_TOKEN_BUCKETS`, not cumulative, and one more for larger steps.
        handoffs_in_total, handoff_bytes_in_total: handoffs adopted, and what had to be moved for them.
        has_work: something should move without outside help; true and no progress for long = stuck.
        tokens_per_s: recent tokens computed per second of step time, prompt and output; 0 = not known, or not any more.
    """

    at_s: float
    waiting: int
    running: int
    held: int
    pulling: int
    fetching: int
    storing_blocks: int
    queued_tokens: int
    kv_blocks_total: int
    kv_blocks_used: int
    kv_blocks_cached: int
    prefix_queries_tokens_total: int
    prefix_hits_tokens_total: int
    pulled_tokens_total: int
    lost_tokens_total: int
    unstored_blocks_total: int
    preemptions_total: int
    steps_total: int
    prompt_tokens_total: int
    generated_tokens_total: int
    handoffs_out_total: int
    handoffs_in_total: int
    handoffs_expired_total: int
    handoff_bytes_in_total: int
    last_progress_s: float
    has_work: bool
    draining: bool
    tokens_per_s: float
    drafts_total: int = 0
    draft_tokens_total: int = 0
    accepted_drafts_total: tuple[int, ...] = ()
    steps_by_tokens: tuple[int, ...] = ()
