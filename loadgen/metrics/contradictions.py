"""Responses that contradict the server's own usage, or that are empty although tokens were counted.

A proxy may send every chunk twice, or a server may count prompts as output: each response ends well, and every figure
based on tokens is wrong. A single wrong response is enough for a warning.
"""

from collections import Counter
from collections.abc import Sequence

from loadgen.record import SUCCESSES, RequestRecord

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
    chunks, told = len(record.chunks()), sum(record.tokens_of_chunks())
    if told > tokens:
        return f"chunks with {told} tokens, and {tokens} in usage"
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
