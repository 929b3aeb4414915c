"""Costs of a request: token counts, as clients are billed (each prompt once, every output token), and times."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.gateway.api.choice import ChoiceOutput, completion_details
from serving.gateway.api.tools.output_rules import Thinking
from serving.gateway.api.translate import GenerationOrder

# Times of one sequence measured at the gateway, and vLLM's `metrics` object built from them.
#
#     arrived    submitted     started       first token         last token
#                    |-- queue_s --|
#        |-------- to first token ---------------|---- generation ----|
#
# Only for requests with one prompt and one choice, as in vLLM: times of several sequences cannot be combined. A stream
# has it in the usage chunk, so a client that did not request usage does not receive it.


@dataclass(slots=True)
class Timing:
    """Times of one clock [s]; None until the event has happened.

    Args:
        submitted: submission to the backend.
        arrived: arrival of the request; None = same as `submitted`.
        queue_s: queueing time in the backend; None if the backend does not report it.
        first, last: arrival of the first and the latest token.
    """

    submitted: float
    arrived: float | None = None
    queue_s: float | None = None
    first: float | None = None
    last: float | None = None

    def token(self, now: float) -> None:
        """Record the arrival of tokens."""
        if self.first is None:
            self.first = now
        self.last = now

    def as_wire(self, tokens: int) -> dict[str, float]:
        """The `metrics` object in milliseconds, without keys for unknown values; empty if there was no token.

        Names and meanings are vLLM's except for `time_to_first_token_ms`: it counts from the request's arrival,
        while vLLM counts from the end of the queue. `generation_time_ms` is the time from the first token to the last,
        `tokens_per_second` counts from the end of the queue to the last token.

        Args:
            tokens: output tokens of the sequence.
        Source: vLLM 0.33, `build_per_request_timing_metrics`.
        """
        if self.first is None or self.last is None:
            return {}
        started = self.submitted + (self.queue_s or 0.0)
        decode_s = self.last - self.first
        fields = {
            "time_to_first_token_ms": _ms(self.first - (self.submitted if self.arrived is None else self.arrived)),
            "generation_time_ms": _ms(decode_s),
        }
        if self.queue_s is not None:
            fields["queue_time_ms"] = _ms(self.queue_s)
        if tokens > 1:
            fields["mean_itl_ms"] = _ms(decode_s / (tokens - 1))
        if self.last > started:
            fields["tokens_per_second"] = round(tokens / (self.last - started), 3)
        return fields


def _ms(seconds: float) -> float:
    """Milliseconds, rounded to a microsecond; a backend's clocks may disagree by less about the order of events."""
    return round(max(0.0, seconds) * 1000, 3)


# Costs of a request: token counts, as clients are billed (each prompt once, every output token), and times.


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

    `prompt_tokens_details` has OpenAI's `cached_tokens` and, if the request claims its prompt, `cache_write_tokens`;
    with a KV-cache pool also `pulled_tokens`, `recomputed_tokens` and, if any, `recompute_reasons` (reason to tokens),
    all for the caller's own namespace.
    `completion_tokens_details` is present if there were draft tokens, see `choice`; `resumptions`, the number of
    times that choices moved to another instance after a failure, if any did; `masked_tokens` as in `masked_use`.

    Args:
        sent: tokens sent so far, by choice; None = all.
    """
    prompt = sum(len(ids) for ids in order.prompts)
    begun = choices if sent is None else [choice for choice in choices if choice.index in sent]
    completion = sum(choice.completion_tokens for choice in begun) if sent is None else sum(sent.values())
    use = cache_use(order, choices)
    resumptions = sum(choice.resumptions for choice in choices)
    details: dict[str, Any] = {"cached_tokens": use.cached_tokens}
    if order.hints is not None and order.hints.ends:
        details["cache_write_tokens"] = sum(order.hints.written(use.cached_tokens).values())
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
        **masked_use(choices),
    }


def masked_use(choices: Sequence[ChoiceOutput]) -> dict[str, int]:
    """The key `masked_tokens` of a usage; empty if there are none.

    These tokens, of prompts too, were computed while experts of a lost rank were masked: the output may differ from
    that of a complete instance.
    """
    masked = sum(choice.masked_tokens for choice in choices)
    return {"masked_tokens": masked} if masked else {}


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
