"""Decode with attention and experts on different dies, as xDeepServe splits them.

Attention dies form domains that take turns at the expert dies. Each attention die computes two half batches: while
one is away (sent to the experts, multiplied, sent back), the other computes. If the experts keep up, an iteration is
attention time alone, plus the last exchange that nothing hides.

    iteration = start + MTP layers + 2 * layers * max(attention, experts' turn) + last exchange
"""

from dataclasses import dataclass

from hardware.cost.cost_model import CostModel
from hardware.cost.loads import DecodeLoad
from hardware.errors import SpecError
from hardware.units import MICROSECOND, MILLISECOND, Seconds

HALVES = 2
SCHEDULING_S = 2 * MILLISECOND
"""Source: xDeepServe 7.1."""
MTP_LAYER_S = 5 * MILLISECOND
"""One MTP layer, which is not split. Source: xDeepServe 7.1."""
MEASURED_TOKENS = 96
"""Tokens of a half batch at which the stages were measured: 48 sequences, each with one draft."""
SEND_S = 172 * MICROSECOND
"""Attention to experts. Source: xDeepServe 3.3."""
RETURN_S = 193 * MICROSECOND
"""Experts to attention. Source: xDeepServe 3.3."""


@dataclass(frozen=True, slots=True)
class DisaggregatedStep:
    """One iteration.

    Attributes:
        attention_s: one half batch in one layer on an attention die, gate and sending included.
        send_s / experts_s / return_s: stages of one half batch of one domain.
        turn_s: how often the expert dies can take a half batch of the same domain: domains times the longest stage.
        bound: `attention` or `experts`: which of the two sets the pace.
    """

    total_s: Seconds
    attention_s: Seconds
    send_s: Seconds
    experts_s: Seconds
    return_s: Seconds
    turn_s: Seconds
    bound: str

    def tpot_s(self, tokens_per_step: float) -> Seconds:
        """Time per output token. Effects: none."""
        return Seconds(self.total_s / tokens_per_step)


def disaggregated_decode_step(
    model: CostModel,
    *,
    requests: float,
    context_tokens: float,
    attention_dies: int = 480,
    expert_dies: int = 288,
    domains: int = 3,
    drafts: int = 1,
    attention_s: float | None = None,
    experts_s: float | None = None,
) -> DisaggregatedStep:
    """One iteration of the split layout.

    Args:
        requests: sequences per attention die; all dies alike.
        context_tokens: sum of their contexts.
        domains: groups of attention dies that take turns.
        attention_s / experts_s: measured stage times to use instead of the model's.
    Raises: SpecError for a layout without dies, domains that do not divide the attention dies, or a dense model.
    Effects: none that shows.
    Source: xDeepServe 5.2, 7.1.
    """
    if not model.shape.experts:
        raise SpecError(f"model {model.shape.name}: has no experts to put on dies of their own")
    if min(attention_dies, expert_dies, domains) < 1 or attention_dies % domains:
        raise SpecError(f"{attention_dies} attention dies in {domains} domains, {expert_dies} expert dies: impossible")
    step, shape, cal = model.decode, model.shape, model.device.calibration
    load = DecodeLoad(requests, context_tokens, None, expert_dies, drafts, True)
    half = step.half_batch(load, HALVES)
    tokens = requests * (1 + drafts) / HALVES
    size = tokens / MEASURED_TOKENS
    floor = cal.exchange_floor_s
    send, back = floor + (SEND_S - floor) * size, floor + (RETURN_S - floor) * size
    attention = (step.attention_s(half, 1.0) + send) if attention_s is None else attention_s
    group = step.group(expert_dies)
    arriving = tokens * attention_dies / domains / expert_dies
    rows = group.busiest(arriving) + cal.small_gemm_tokens * group.read(arriving * expert_dies)
    product = max(step.terms.expert_t * rows, half.expert_w)
    experts = product + cal.expert_vector_s * arriving + cal.expert_start_s if experts_s is None else experts_s
    turn = domains * max(send, experts, back)
    pace = max(attention, turn)
    tail = send + experts + back
    total = SCHEDULING_S + drafts * MTP_LAYER_S + HALVES * shape.layers * pace + tail
    return DisaggregatedStep(
        Seconds(total),
        Seconds(attention),
        Seconds(send),
        Seconds(experts),
        Seconds(back),
        Seconds(turn),
        "attention" if attention >= turn else "experts",
    )
