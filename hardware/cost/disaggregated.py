"""Decode with attention and experts on different dies, as xDeepServe splits them.

Attention dies form domains that take turns at the expert dies. Each attention die computes two half batches: while
one is away (sent to the experts, multiplied, sent back), the other computes. If the experts keep up, an iteration is
attention time alone, plus the last, fully exposed exchange.

    iteration = start + MTP layers + 2 * layers * pace + last exchange
    pace      = the longest of: attention with sending; experts' turn; half of a round trip

A small batch is faster as a whole: one fully exposed round trip per layer.

Scheduling, MTP layers and the two exchanges are times of the one published deployment. Exchanges grow with the load of
their fuller end, with the size of a message and with the copies of a token. Dense layers count as expert layers.
"""

from dataclasses import dataclass

from hardware.cost.decode_step import DecodeStep
from hardware.cost.decode_terms import MEASURED_COMBINE_BYTES, MEASURED_DISPATCH_BYTES
from hardware.cost.loads import DecodeLoad
from hardware.units import MICROSECOND, MILLISECOND, Seconds

HALVES = 2
SCHEDULING_S = 2 * MILLISECOND
"""Source: xDeepServe 7.1."""
MTP_LAYER_S = 5 * MILLISECOND
"""One MTP layer, which is not split. Source: xDeepServe 7.1."""
MEASURED_TOKENS = 96
"""Tokens of a half batch at which the stages were measured: 48 sequences, each with one draft."""
MEASURED_ARRIVING = 96 * 480 / 3 / 288
"""Tokens that an expert die stood for then: 480 attention dies in 3 domains, 288 expert dies."""
MEASURED_COPIES = 9
"""Copies of a token that were sent: 8 routed and a shared expert on dies of their own."""
SEND_S = 172 * MICROSECOND
"""Attention to experts. Source: xDeepServe 3.3."""
RETURN_S = 193 * MICROSECOND
"""Experts to attention. Source: xDeepServe 3.3."""


@dataclass(frozen=True, slots=True)
class DisaggregatedStep:
    """One iteration.

    Attributes:
        halves: parts of a batch: 2, or 1 = the whole at once.
        attention_s: one half batch in one layer on an attention die, gate and sending included.
        send_s / experts_s / return_s: stages of one half batch of one domain.
        turn_s: how often the expert dies can take a half batch of the same domain: domains times the longest stage.
        pace_s: from one half batch to the next, in one layer.
        bound: `attention`, `experts` or `round trip`: which of them sets the pace.
    """

    total_s: Seconds
    halves: int
    attention_s: Seconds
    send_s: Seconds
    experts_s: Seconds
    return_s: Seconds
    turn_s: Seconds
    pace_s: Seconds
    bound: str

    @property
    def last_s(self) -> Seconds:
        """The last exchange, which no other half hides; 0 for a whole batch, whose layers contain theirs."""
        return Seconds(self.send_s + self.experts_s + self.return_s if self.halves > 1 else 0.0)

    def tpot_s(self, tokens_per_step: float) -> Seconds:
        """Time per output token."""
        return Seconds(self.total_s / tokens_per_step)


class ApartDecodeStep(DecodeStep):
    """Decode steps of instances with experts on separate dies.

    A load is of attention dies: `requests` of the fullest one, `mean_requests` over all of them, `dies` of both kinds.
    """

    def seconds(self, load: DecodeLoad) -> Seconds:
        """Duration of one step [s], in halves or as a whole: from the load, else whichever is faster."""
        return self.iteration(load).total_s

    def uses_microbatch(self, load: DecodeLoad) -> bool:
        """Whether this step runs as two half batches."""
        return self.iteration(load).halves > 1

    def iteration(self, load: DecodeLoad) -> DisaggregatedStep:
        """One step with its stages."""
        if load.microbatch is not None:
            return self.stages(load, HALVES if load.microbatch else 1)
        halved, whole = self.stages(load, HALVES), self.stages(load, 1)
        return halved if halved.total_s < whole.total_s else whole

    def stages(
        self, load: DecodeLoad, halves: int, attention_s: float | None = None, experts_s: float | None = None
    ) -> DisaggregatedStep:
        """One step in so many parts.

        Args:
            attention_s / experts_s: measured stage times to use instead of the model's.
        Effects: fills a cache.
        Source: xDeepServe 5.2, 7.1.
        """
        expert_dies, domains, cal = self.parallelism.expert_dies, self.parallelism.domains, self.device.calibration
        rows = 1 + load.drafts
        requests = load.requests if load.mean_requests is None else load.mean_requests
        on_attention = DecodeLoad(load.requests, load.context_tokens, requests, expert_dies, load.drafts, halves > 1)
        half, group = self.half_batch(on_attention, halves), self.group(expert_dies)
        arriving = requests * rows / halves * self.parallelism.groups(load.dies) / domains / expert_dies
        send, back = self._exchange_s(load.requests * rows / halves, arriving)
        attention = (self.attention_s(half, 1.0) + send) if attention_s is None else attention_s
        read = group.read(arriving * expert_dies)
        product = self.terms.expert_t * (group.busiest(arriving) + cal.small_gemm_tokens * read)
        product = max(product, self.terms.expert_w * read)
        experts = product + cal.expert_vector_s * arriving + cal.expert_start_s if experts_s is None else experts_s
        turn = domains * max(send, experts, back)
        trip = (attention + experts + back) / halves
        pace = max(attention, turn, trip)
        last = send + experts + back if halves > 1 else 0.0
        layers = halves * self.shape.layers * pace
        return DisaggregatedStep(
            Seconds(SCHEDULING_S + load.drafts * MTP_LAYER_S + layers + last),
            halves,
            Seconds(attention),
            Seconds(send),
            Seconds(experts),
            Seconds(back),
            Seconds(turn),
            Seconds(pace),
            "experts" if pace == turn else "attention" if pace == attention else "round trip",
        )

    def _exchange_s(self, tokens: float, arriving: float) -> tuple[float, float]:
        """Times of sending and of returning.

        Args:
            tokens: of a part of the batch, on the fullest attention die.
            arriving: tokens processed per expert die: those of a domain over all expert dies.
        """
        shape, floor = self.shape, self.device.calibration.exchange_floor_s
        own_dies = self.group(self.parallelism.expert_dies).shared_visits > 0
        copies = shape.active_experts + (shape.shared_experts if own_dies else 0)
        size = max(tokens / MEASURED_TOKENS, arriving / MEASURED_ARRIVING) * (copies / MEASURED_COPIES)
        send = floor + (SEND_S - floor) * size * (shape.dispatch_bytes / MEASURED_DISPATCH_BYTES)
        back = floor + (RETURN_S - floor) * size * (shape.combine_bytes / MEASURED_COMBINE_BYTES)
        return send, back
