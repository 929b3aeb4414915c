"""The state of an engine in numbers: announced by its instance and exported as metrics under the same names."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """State of one engine. Counters (`*_total`) only increase; the rest is the present state.

    Args:
        at_s: engine time of this snapshot [s].
        waiting: sequences without blocks: new, preempted, or handed off and not admitted yet.
        fetching: sequences whose prefixes are being fetched from the KV-cache pool.
        storing_blocks: blocks that wait to be copied into the pool.
        queued_tokens: known tokens that are still to be computed.
        kv_blocks_cached: free blocks that a prefix could still match.
        pulled_tokens_total, lost_tokens_total: prompt tokens read from the pool, and lost there.
        drafts_total: steps of single sequences that verified draft tokens; draft_tokens_total: these tokens.
        accepted_drafts_total: accepted draft tokens that were used, by position; empty without speculation.
        unstored_blocks_total: full blocks that were not offered to the pool because too many were waiting.
        last_progress_s: engine time of the last step, or of the arrival of work at an idle engine [s].
        steps_total: finished steps, without failed ones.
        steps_by_tokens: steps by the tokens that each computed from prompts and sampled: one count for each of
            `ITERATION_TOKEN_BUCKETS`, not cumulative, and one more for larger steps.
        handoffs_in_total, handoff_bytes_in_total, handoff_seconds_total: adopted handoffs, bytes moved for them, and
            the sum of their durations [s].
        handoff_failures_total: failed pulls of sequences that were still wanted.
        has_work: whether the engine should make progress on its own; true without progress for long = stuck.
        tokens_per_s: recent tokens computed per second of step time, prompt and output; 0 = unknown, or outdated.
    """

    at_s: float = 0.0
    waiting: int = 0
    running: int = 0
    held: int = 0
    pulling: int = 0
    fetching: int = 0
    storing_blocks: int = 0
    queued_tokens: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    kv_blocks_cached: int = 0
    prefix_queries_tokens_total: int = 0
    prefix_hits_tokens_total: int = 0
    pulled_tokens_total: int = 0
    lost_tokens_total: int = 0
    unstored_blocks_total: int = 0
    preemptions_total: int = 0
    steps_total: int = 0
    prompt_tokens_total: int = 0
    generated_tokens_total: int = 0
    handoffs_out_total: int = 0
    handoffs_in_total: int = 0
    handoffs_expired_total: int = 0
    handoff_bytes_in_total: int = 0
    handoff_seconds_total: float = 0.0
    handoff_failures_total: int = 0
    last_progress_s: float = 0.0
    has_work: bool = False
    draining: bool = False
    tokens_per_s: float = 0.0
    drafts_total: int = 0
    draft_tokens_total: int = 0
    accepted_drafts_total: tuple[int, ...] = ()
    steps_by_tokens: tuple[int, ...] = ()
