"""Times of one sequence measured at the gateway, and vLLM's `metrics` object built from them.

    arrived    submitted     started       first token         last token
                   |-- queue_s --|
       |-------- to first token ---------------|---- generation ----|

Only for requests with one prompt and one choice, as in vLLM: times of several sequences cannot be combined. A stream
has it in the usage chunk, so a client that did not request usage does not receive it.
"""

from dataclasses import dataclass


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
