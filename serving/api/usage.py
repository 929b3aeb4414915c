"""What a request came to: token counts, as clients are billed (each prompt once, every output token), and times."""

from collections.abc import Sequence
from typing import Any

from serving.api.choice import Choice
from serving.api.timing import Timing
from serving.api.translate import Order


def usage(order: Order, choices: Sequence[Choice]) -> dict[str, Any]:
    """The `usage` object. A prompt's cached tokens are those of its first choice: the others reuse that one's work."""
    prompt = sum(len(ids) for ids in order.prompts)
    completion = sum(choice.completion_tokens for choice in choices)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in choices[:: order.n])},
    }


def times(timing: Timing | None, choices: Sequence[Choice]) -> dict[str, Any]:
    """The key `metrics` with vLLM's times of the only choice; empty if there are none to tell."""
    fields = timing.as_wire(choices[0].completion_tokens) if timing is not None else {}
    return {"metrics": fields} if fields else {}
