"""Warnings that a reader needs before trusting a result; one sentence each."""

from collections import Counter
from collections.abc import Sequence

from loadgen.metrics.distribution import name_of
from loadgen.metrics.lengths import length_cautions
from loadgen.metrics.verdict import GeneratorFacts
from loadgen.record import FAILURES, SUCCESSES, RequestOutcome, RequestRecord
from loadgen.result import SloResult

SHORT_RUN_S = 10.0
FEW_REQUESTS = 30
TOKENS_OFF = 0.05


def cautions(
    records: Sequence[RequestRecord],
    facts: GeneratorFacts,
    *,
    duration_s: float,
    percentiles: Sequence[float],
    slo: SloResult | None = None,
) -> list[str]:
    """Warnings about a run's measured requests, the worst first: missing, guessed, uncertain."""
    good = [record for record in records if record.outcome in SUCCESSES]
    return [
        *_interrupted(facts),
        *_nothing(good),
        *_failures(records),
        *contradiction_cautions(good),
        *_tokens(good),
        *length_cautions(records),
        *_untestable(slo),
        *_extent(len(good), duration_s, percentiles),
    ]


def _interrupted(facts: GeneratorFacts) -> list[str]:
    found = list(facts.problems)
    if facts.lost_workers:
        numbers = ", ".join(map(str, facts.lost_workers))
        found.append(f"worker process {numbers} was lost; its open requests are missing")
    if facts.interrupted and not found:
        found.append("the run was interrupted; only requests finished by then are included")
    return found


def _nothing(good: Sequence[RequestRecord]) -> list[str]:
    return [] if good else ["no request succeeded; there are no latencies"]


def _failures(records: Sequence[RequestRecord]) -> list[str]:
    failed = [record for record in records if record.outcome in FAILURES]
    found = []
    if failed:
        worst = max({record.outcome for record in failed}, key=lambda kind: sum(r.outcome == kind for r in failed))
        found.append(
            f"{len(failed)} of {len(records)} requests failed (most: {worst.value.replace('_', ' ')}); latencies are "
            "those of the others, and `with_failures` counts failures as infinitely late"
        )
    cut = sum(record.outcome is RequestOutcome.UNFINISHED for record in records)
    if cut:
        found.append(
            f"{cut} requests had not ended when the run did: latencies leave them out, SLOs count those that had "
            "missed one by then; raise --drain to wait for them"
        )
    return found


def _tokens(good: Sequence[RequestRecord]) -> list[str]:
    found = []
    unknown = sum(record.output_tokens is None for record in good)
    if unknown:
        found.append(
            f"{unknown} responses had no usage: their chunks are counted as tokens, so TPOT and token rates are "
            "estimates"
        )
    planned = [
        (record.planned_input_tokens, record.input_tokens)
        for record in good
        if record.planned_input_tokens and record.input_tokens is not None and record.turn == 0
    ]
    off = [reported / plan - 1 for plan, reported in planned if abs(reported - plan) > max(1, TOKENS_OFF * plan)]
    if off:
        mean = sum(off) / len(off)
        found.append(
            f"{len(off)} prompts had other lengths than planned ({mean:+.0%} on average by the server's count), for "
            "instance because a chat template adds its own; figures are by the server's count"
        )
    return found


def _untestable(slo: SloResult | None) -> list[str]:
    if slo is None or not slo.untestable:
        return []
    return [
        f"{slo.untestable} successful answers have no value for one of the SLOs (a single token has no TPOT) and count "
        "as if they had kept it"
    ]


def _extent(good: int, duration_s: float, percentiles: Sequence[float]) -> list[str]:
    if not good:
        return []
    found = []
    if duration_s < SHORT_RUN_S:
        found.append(f"the measured part lasted {duration_s:.1f} s; short runs are ruled by start-up and drain")
    if good < FEW_REQUESTS:
        found.append(f"only {good} requests succeeded; percentiles of so few mean little")
    beyond = [
        f"p{name_of(p)}" for p in percentiles if 50 < p < 100 and good * (1 - p / 100) < 1 and good >= FEW_REQUESTS
    ]
    if beyond:
        found.append(f"{', '.join(beyond)} of {good} requests is made of the slowest one or two; run longer")
    return found


# Responses that contradict the server's own usage, or that are empty although tokens were counted.
#
# A proxy may send every chunk twice, or a server may count prompts as output: each response ends well, and every figure
# based on tokens is wrong. A single wrong response is enough for a warning.

_SPARE_CHUNKS = 1
"""Chunks beyond the tokens: text that was held back may come in one of its own."""
_CALLS = ("tool_calls", "function_call")


def contradiction(record: RequestRecord) -> str:
    """Contradiction in a successful answer, in words; empty if there is none."""
    tokens = record.output_tokens
    if (record.cached_tokens or 0) > (record.input_tokens if record.input_tokens is not None else float("inf")):
        return f"{record.cached_tokens} cached tokens of {record.input_tokens} in the prompt"
    if tokens is None:
        return ""
    if (record.reasoning_tokens or 0) > tokens:
        return f"{record.reasoning_tokens} tokens of reasoning among {tokens}"
    chunks, reported = len(record.chunks()), sum(record.tokens_of_chunks())
    if reported > tokens:
        return f"chunks with {reported} tokens, and {tokens} in usage"
    if chunks > tokens + _SPARE_CHUNKS or (chunks and not tokens):
        return f"{chunks} chunks of text for {tokens} tokens"
    said = chunks or record.content_chars or record.finish_reason in _CALLS
    if tokens > 1 and not said:  # a single token may be the end
        return f"no text for {tokens} tokens"
    return f"text of {record.content_chars} characters for no token" if said and not tokens else ""


def contradictions(records: Sequence[RequestRecord]) -> int:
    """Successful responses that contradict themselves."""
    return sum(bool(contradiction(record)) for record in records if record.outcome in SUCCESSES)


def contradiction_cautions(good: Sequence[RequestRecord]) -> list[str]:
    """A caution if any do.

    Args:
        good: successful requests.
    """
    found = Counter(words for record in good if (words := contradiction(record)))
    if not found:
        return []
    return [
        f"{found.total()} of {len(good)} answers contradict the server's own usage (for instance "
        f"{found.most_common(1)[0][0]}): token counts and times between tokens cannot be believed; these answers"
        " count as failures for the exit status"
    ]
