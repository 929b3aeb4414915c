"""Decode with attention and experts on different dies, as xDeepServe splits them.

A session is one half batch of one attention die. It asks the expert dies for one layer: it sends its rows (A2E), they
are multiplied, the results come back (E2A). Attention dies form domains; all sessions of a domain are served together,
and domains take turns at the expert dies, which run the three stages as a pipeline. While one half batch is away, the
attention die computes the other.

    A2E       = dispatch between the attention dies and as many expert dies (trampolines) + hop to the remaining ones
    E2A       = hop to the trampolines + combine          (without hops if all expert dies are addressed directly)
    peers     : rows go once to one expert die, which dispatches them among the expert dies, all on one stream
    iteration = start + MTP layers + 2 * layers * pace + last exchange
    pace      = the longest of: attention with sending; experts' turn; half of a round trip

A small batch is faster as a whole: one fully exposed round trip per layer. `session_timeline` prices the same sessions
event by event; the closed form is its steady state.

Exchanges cost what the device's measured dispatch and combine do between as many dies, for the rows of the fuller end:
an attention die's own, or those of the expert die that is busiest under the expert map. Scheduling and MTP layers are
times of the one published deployment. Dense layers count as expert layers.
"""

from dataclasses import dataclass
from typing import NamedTuple

from hardware.cost.decode_step import DecodeStep
from hardware.cost.decode_terms import MEASURED_COMBINE_BYTES, MEASURED_DISPATCH_BYTES
from hardware.cost.device_model import DeviceModel
from hardware.cost.exchange import combine_line, dispatch_line, hop_s
from hardware.cost.loads import DecodeLoad
from hardware.cost.model_shape import ModelShape
from hardware.cost.parallelism import Parallelism
from hardware.units import MILLISECOND, Seconds

HALVES = 2
SCHEDULING_S = 2 * MILLISECOND
"""Source: xDeepServe 7.1."""
MTP_LAYER_S = 5 * MILLISECOND
"""One MTP layer, which is not split. Source: xDeepServe 7.1."""


class SplitExchange(NamedTuple):
    """One layer's exchange of a half batch [s].

    Attributes:
        first / last: dispatch from attention dies, combine at them.
        forward / gather: hop from trampolines to the expert dies behind them, and back; 0 without such dies.
    """

    first: float
    forward: float
    gather: float
    last: float


class SessionTurns(NamedTuple):
    """Sessions of one iteration: how many domains, halves of each batch, and layers."""

    domains: int
    halves: int
    layers: int


@dataclass(frozen=True, slots=True)
class DisaggregatedStep:
    """One iteration.

    Attributes:
        halves: parts of a batch: 2, or 1 = the whole at once.
        attention_s: one half batch in one layer on an attention die, gate and sending included.
        send_s / experts_s / return_s: stages of one half batch of one domain, on the busiest expert die.
        exchange: parts of sending and returning.
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
    exchange: SplitExchange

    @property
    def last_s(self) -> Seconds:
        """The last exchange, which no other half hides; 0 for a whole batch, whose layers contain theirs."""
        return Seconds(self.send_s + self.experts_s + self.return_s if self.halves > 1 else 0.0)

    def tpot_s(self, tokens_per_step: float) -> Seconds:
        """Time per output token."""
        return Seconds(self.total_s / tokens_per_step)


def session_timeline(exchange: SplitExchange, attention_s: float, experts_s: float, turns: SessionTurns) -> Seconds:
    """Duration of all layers, session by session: the closed form of `DisaggregatedStep` is its steady state.

    An attention die is busy until its rows are sent. Each of the expert dies' three stages serves one half batch of one
    domain at a time, in order of arrival.

    Args:
        attention_s: a half batch in one layer, sending included.
        experts_s: products of the busiest expert die.
    """
    free = [0.0] * turns.domains
    back = [[0.0] * turns.halves for _ in range(turns.domains)]
    receives = multiplies = returns = 0.0
    for turn in range(turns.layers * turns.halves):
        half = turn % turns.halves
        for domain in sorted(range(turns.domains), key=lambda one: max(free[one], back[one][half])):
            sends = max(max(free[domain], back[domain][half]) + attention_s - exchange.first, receives)
            free[domain] = sends + exchange.first
            receives = free[domain] + exchange.forward
            multiplies = max(receives, multiplies) + experts_s
            returns = max(multiplies, returns) + exchange.gather + exchange.last
            back[domain][half] = returns
    return Seconds(returns)


class ApartDecodeStep(DecodeStep):
    """Decode steps of instances with experts on separate dies.

    A load is of attention dies: `requests` of the fullest one, `mean_requests` over all of them, `dies` of both kinds.
    """

    def __init__(self, device: DeviceModel, shape: ModelShape, parallelism: Parallelism) -> None:
        super().__init__(device, shape, parallelism)
        self._dispatch, self._combine = dispatch_line(device.experts), combine_line(device.experts)

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
        sessions, peers = self.parallelism.groups(load.dies) / domains, self.parallelism.trampolines == "peers"
        arriving = requests * rows / halves * sessions / expert_dies
        visits = group.busiest(arriving, load.imbalance)
        tokens = load.requests * rows / halves
        exchange = self._peers(tokens, arriving) if peers else self._exchange(tokens, sessions, arriving, visits)
        send, back = exchange.forward + (0.0 if peers else exchange.first), exchange.gather + exchange.last
        attention = (self.attention_s(half, 1.0) + exchange.first) if attention_s is None else attention_s
        read = group.read(arriving * expert_dies)
        product = self.terms.expert_t * (visits + cal.small_gemm_tokens * read)
        product, vector = max(product, self.terms.expert_w * read), self.terms.expert_v * arriving
        experts = max(product, vector) + min(product, vector) / max(read, 1.0) if experts_s is None else experts_s
        busy = exchange.forward + experts + back if peers else max(send, experts, back)
        turn = domains * busy
        trip = (attention + exchange.forward + experts + back) / halves
        pace = max(attention, turn, trip)
        last = send + experts + back if halves > 1 else 0.0
        drafts = self.drafts_s(load) if self.drafter is not None else load.drafts * MTP_LAYER_S
        layers = halves * self.shape.layers * pace
        return DisaggregatedStep(
            Seconds(SCHEDULING_S + drafts + layers + last),
            halves,
            Seconds(attention),
            Seconds(send),
            Seconds(experts),
            Seconds(back),
            Seconds(turn),
            Seconds(pace),
            "experts" if pace == turn else "attention" if pace == attention else "round trip",
            exchange,
        )

    def _peers(self, tokens: float, arriving: float) -> SplitExchange:
        """The same where each attention die has one expert die: rows in BF16 and once, the gate is behind them.

        An attention die's own stream sends and receives; so does an expert die's, around its dispatch and combine.

        Args:
            tokens: of a part of the batch, on the fullest attention die.
            arriving: tokens of a domain per expert die.
        Source: afd-plugin, CAM P2P connector user guide: topology, `compute_gate_on_attention`, `quant_mode`.
        """
        shape, cal, table, dies = self.shape, self.device.calibration, self.device.experts, self.parallelism.expert_dies
        floor, rate = cal.exchange_floor_s, cal.bulk_exchange_bytes_per_s
        size = arriving * shape.active_experts / (table.tokens * table.copies)
        sent, returned = shape.dispatch_bytes / MEASURED_DISPATCH_BYTES, shape.combine_bytes / MEASURED_COMBINE_BYTES
        dispatch = floor + max(0.0, self._dispatch.seconds(dies) - floor) * size * sent
        combine = floor + max(0.0, self._combine.seconds(dies) - floor) * size * returned
        own, theirs = (floor + rows * shape.combine_bytes / rate for rows in (tokens, arriving))
        return SplitExchange(2 * own, theirs + dispatch, combine, theirs)

    def _exchange(self, tokens: float, sessions: float, arriving: float, visits: float) -> SplitExchange:
        """Duration of one exchange.

        Args:
            tokens: of a part of the batch, on the fullest attention die.
            sessions: attention dies of a domain.
            arriving: tokens of a domain per expert die. visits: rows of the busiest expert die.
        """
        shape, cal, table = self.shape, self.device.calibration, self.device.experts
        expert_dies, direct = self.parallelism.expert_dies, self.parallelism.trampolines == "direct"
        copies = shape.active_experts + shape.shared_experts
        behind = 0.0 if direct else max(expert_dies - sessions, 0.0)
        peers = max(sessions, expert_dies) if direct else sessions
        fullest = max(tokens * copies, visits + arriving * copies * behind / min(sessions, expert_dies))
        size, floor = fullest / (table.tokens * table.copies), cal.exchange_floor_s
        sent, returned = shape.dispatch_bytes, shape.combine_bytes
        first = max(0.0, self._dispatch.seconds(peers) - floor) * size * sent / MEASURED_DISPATCH_BYTES
        last = max(0.0, self._combine.seconds(peers) - floor) * size * returned / MEASURED_COMBINE_BYTES
        hops = [hop_s(self.device, visits * nbytes) if behind else 0.0 for nbytes in (sent, returned)]
        return SplitExchange(floor + first, hops[0], hops[1], floor + last)
