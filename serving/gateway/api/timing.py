"""Times of one sequence measured at the gateway, and vLLM's `metrics` object built from them.

    arrived    submitted     started       first token         last token
                   |-- queue_s --|
       |-------- to first token ---------------|---- generation ----|

Only for requests with one prompt and one choice, as in vLLM: times of several sequences cannot be combined. A stream
carries it in the usage chunk, so a client that did not request usage does not receive it.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Timing:
    """Stamps of one clock [s]; None until it happened.

    Args:
        submitted: given to the backend.
        arrived: the request itself; None = when it was submitted.
        queue_s: queueing time in the backend; None where the backend does not report it.
        first, last: arrival of the first and the latest token.
    """

    submitted: float
    arrived: float | None = None
    queue_s: float | None = None
    first: float | None = None
    last: float | None = None

    def token(self, now: float) -> None:
        """Tokens arrived."""
        if self.first is None:
            self.first = now
        self.last = now

    def as_wire(self, tokens: int) -> dict[str, float]:
        """The `metrics` object: milliseconds; what is not known has no key, and without any token there is nothing.

        Names are vLLM's, and so is their meaning but for `time_to_first_token_ms`: all that the client waited, from the
        request's arrival on, where vLLM begins when the queue is left. `generation_time_ms` is the time from the first
        token to the last, `tokens_per_second` counts from the end of the queue to the last token.

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
    """Milliseconds to the microsecond; two clocks of a backend may disagree by less than that about what came first."""
    return round(max(0.0, seconds) * 1000, 3)
