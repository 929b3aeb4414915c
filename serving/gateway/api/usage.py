"""Costs of a request: token counts, as clients are billed (each prompt once, every output token), and times."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.gateway.api.choice import ChoiceOutput
from serving.gateway.api.draft_tally import completion_details
from serving.gateway.api.timing import Timing
from serving.gateway.api.tools.output_rules import Thinking
from serving.gateway.api.translate import GenerationOrder


@dataclass(slots=True)
class PromptCacheUse:
    """Effect of caching on the prompts of a request.

    Args:
        cached_tokens: not computed: in the instance's cache or pulled from the KV-cache pool.
        pulled_tokens: number of them that were pulled from the pool.
        recomputed: tokens that were computed although the pool had, or may have had them, by reason.
        pooled: whether there is a pool.
    """

    cached_tokens: int = 0
    pulled_tokens: int = 0
    recomputed: Counter[str] = field(default_factory=Counter)
    pooled: bool = False


def cache_use(order: GenerationOrder, choices: Sequence[ChoiceOutput]) -> PromptCacheUse:
    """Summed over the prompts. A prompt's numbers are those of its first choice, whose work the others reuse."""
    use = PromptCacheUse()
    for choice in choices[:: order.n]:
        use.cached_tokens += choice.cached_tokens
        if choice.pool is not None:
            use.pooled = True
            use.pulled_tokens += choice.pool.pulled_tokens
            if choice.pool.recomputed_tokens:
                use.recomputed[choice.pool.reason or "error"] += choice.pool.recomputed_tokens
    return use


def usage(
    order: GenerationOrder, choices: Sequence[ChoiceOutput], sent: Mapping[int, int] | None = None
) -> dict[str, Any]:
    """The `usage` object.

    `prompt_tokens_details` has OpenAI's `cached_tokens`; with a KV-cache pool also `pulled_tokens`, `recomputed_tokens`
    and, if any, `recompute_reasons` (reason to tokens), all for the caller's own namespace.
    `completion_tokens_details` is present if there were draft tokens, see `draft_tally`; `resumptions`, the number of
    times that choices moved to another instance after a failure, if any did.

    Args:
        sent: tokens sent so far, by choice; None = all.
    """
    prompt = sum(len(ids) for ids in order.prompts)
    begun = choices if sent is None else [choice for choice in choices if choice.index in sent]
    completion = sum(choice.completion_tokens for choice in begun) if sent is None else sum(sent.values())
    use = cache_use(order, choices)
    resumptions = sum(choice.resumptions for choice in choices)
    details: dict[str, Any] = {"cached_tokens": use.cached_tokens}
    if use.pooled:
        details["pulled_tokens"] = use.pulled_tokens
        details["recomputed_tokens"] = use.recomputed.total()
        if use.recomputed:
            details["recompute_reasons"] = dict(use.recomputed)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": details,
        **_completion_details(order, begun),
        **({"resumptions": resumptions} if resumptions else {}),
    }


def _completion_details(order: GenerationOrder, choices: Sequence[ChoiceOutput]) -> dict[str, Any]:
    """Reasoning tokens, for a model that may reason, and draft tokens, if any."""
    found = completion_details([choice.drafts for choice in choices])
    reading = order.options.reading
    if reading is None or reading.thinking is Thinking.NO:
        return found
    thought = {"reasoning_tokens": sum(choice.reasoning_tokens for choice in choices)}
    return {"completion_tokens_details": {**thought, **found.get("completion_tokens_details", {})}}


def times(timing: Timing | None, choices: Sequence[ChoiceOutput]) -> dict[str, Any]:
    """The key `metrics` with vLLM's times of the only choice; empty if there are none."""
    fields = timing.as_wire(choices[0].completion_tokens) if timing is not None else {}
    return {"metrics": fields} if fields else {}
