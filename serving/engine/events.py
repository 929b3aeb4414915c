"""What an engine says beside `values.news`: orders for its driver, and its state in numbers. All values are frozen."""

from dataclasses import dataclass
from enum import Enum

from msgspec import Struct

from serving.ids import BlockHash, BlockId, SequenceId
from serving.policy.step_plan import StepPlan
from serving.values.news import Adopted, Leaving, Lost, Tokens
from serving.values.sequence import HandoffTicket


class HandoffReady(Struct, frozen=True, gc=False):
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


class HandoffClosed(Struct, frozen=True, gc=False):
    """The blocks of a ticket may be overwritten from now on: the driver withdraws the registration."""

    sequence_id: SequenceId
    ticket_id: str
    end: HandoffEnd


EngineEvent = Tokens | HandoffReady | HandoffClosed | Adopted | Lost | Leaving


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
