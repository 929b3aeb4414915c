"""One decode instance kept full: the live decode engines in virtual time, each finished sequence replaced by a new one.

The paper measures decode alone, at a constant batch. This bench does the same: every die's engine has its part of the
batch, KV blocks arrive instantly, and a sequence that ends is replaced. The measurement covers the first sequences from
their first token to their last, all of it under the full batch.
"""

from dataclasses import dataclass
from typing import cast

from hardware.cost import CostModel
from hardware.cost.published import published_halves
from serving.errors import ServingError
from serving.ids import BlockHash, NodeId, ReplicaId, SequenceId
from serving.instance.core.events import FetchOrder, PullOrder, StoreOrder
from serving.instance.core.placeholder import PlaceholderPrompt, mix64
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.values.news import Adopted, News, Tokens
from serving.values.orders import Adopt
from serving.values.sequence import BlockExtent, HandoffTicket, SamplingParams, SequenceSpec
from serving.virtual.decode import DecodeInstance
from serving.virtual.event_queue import EventQueue
from serving.virtual.instance_driver import DriverContext
from serving.virtual.ports import Done

BLOCK_TOKENS = 512
DIES_PER_NPU = 2
_NOWHERE = ReplicaId("prefill")


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """Load that is kept running.

    Attributes:
        batch: sequences per NPU.
        prompt, output: of every sequence [tokens].
        npus: of the instance that is costed; `sampled_dies` of its dies really run, the others are like them.
        microbatch: two half batches; None = as the published engine has them.
    """

    batch: int
    prompt: int
    output: int
    npus: int = 160
    drafts: int = 1
    acceptance: float = 0.7
    seed: int = 0
    sampled_dies: int = 320
    microbatch: bool | None = None

    @property
    def halves(self) -> bool:
        """Whether it runs as two half batches."""
        return published_halves(self.batch) if self.microbatch is None else self.microbatch


@dataclass(frozen=True, slots=True)
class DecodeMeasure:
    """Measured result.

    Attributes:
        tpot_s: mean over the first sequences: first to last token, by the tokens in between.
        tokens_per_s: of one NPU.
        tokens_per_step: of one sequence.
        step_s: mean iteration.
    """

    tpot_s: float
    tokens_per_s: float
    tokens_per_step: float
    step_s: float


class _Times:
    """Iterations of the costed instance. Prompt chunks on a decode die do not occur: instances never preempt."""

    def __init__(self, cost: CostModel, case: DecodeCase) -> None:
        self._table = cost.decode_table(dies=DIES_PER_NPU * case.npus, drafts=case.drafts, microbatch=case.halves)

    def prefill(self, tokens: float, attended_tokens: float, largest: float = 0.0) -> float:
        """See `StepTimes`."""
        raise ServingError("a decode bench computes no prompts")

    def decode(self, requests: float, context_tokens: float, mean_requests: float, groups: int = 0) -> float:
        """See `StepTimes`."""
        return self._table.seconds(requests, context_tokens, mean_requests)

    def chunk_on_decode_die(self, tokens: int, attended_tokens: float) -> float:
        """See `StepTimes`."""
        raise ServingError("a decode bench computes no prompts")


class _Instantly:
    """Movers that take no time; only handoffs occur."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue

    def pull(self, order: PullOrder, target: ReplicaId, die: int, tokens: int, done: Done) -> None:
        """See `Movers`."""
        self._queue.at(self._queue.now, done, (order, 0, None))

    def fetch(self, order: FetchOrder, instance: ReplicaId, done: Done) -> None:
        """See `Movers`."""
        raise ServingError("a decode bench has no KV-cache pool")

    def store(self, order: StoreOrder, instance: ReplicaId, done: Done) -> None:
        """See `Movers`."""
        raise ServingError("a decode bench has no KV-cache pool")


class DecodeBench:
    """One run. Also the gateway: it hears the tokens."""

    def __init__(self, cost: CostModel, case: DecodeCase) -> None:
        self.case = case
        self._queue = EventQueue()
        self._iteration, self._iteration_at_s = 0, 0.0
        self._sequences = case.batch * case.sampled_dies // DIES_PER_NPU
        self._next = 0
        self._first: dict[SequenceId, float] = {}
        self._left = self._sequences
        self.spans: list[float] = []
        blocks = -(-(case.prompt + case.output) // BLOCK_TOKENS)
        self._extents = (BlockExtent(0, 0, 1, BlockHash(b"")),) * -(-case.prompt // BLOCK_TOKENS)
        seats = -(-case.batch // DIES_PER_NPU) + 1
        settings = EngineSettings(
            role=EngineRole.DECODE, block_tokens=BLOCK_TOKENS, max_sequences=seats, max_waiting=4 * seats,
            max_step_tokens=max(seats, BLOCK_TOKENS), max_model_len=case.prompt + case.output, prefix_reuse=False,
            draft_tokens=case.drafts,
        )  # fmt: skip
        around = DriverContext(self._queue, _Times(cost, case), lambda _: self, _Instantly(self._queue), 1)
        self._instance = DecodeInstance(
            ReplicaId("decode"), "decode", case.npus, case.sampled_dies, settings, (blocks + 1) * (seats + 1), around,
            self._no_slowdown, case.drafts, case.acceptance,
        )  # fmt: skip

    def run(self) -> DecodeMeasure:
        """Run until all of the first sequences have finished."""
        for _ in range(self._sequences):
            self._submit(first=True)
        queue = self._queue
        until = 1.0
        while self._left:
            queue.run(until)
            until += 1.0
        tpot = sum(self.spans) / len(self.spans) / (self.case.output - 1)
        step = self._iteration_at_s / self._iteration
        return DecodeMeasure(tpot, self.case.batch / tpot, step / tpot, step)

    def _no_slowdown(self, iteration: int) -> float:
        self._iteration, self._iteration_at_s = iteration, self._queue.now
        return 1.0

    def _submit(self, *, first: bool) -> None:
        case, number = self.case, self._next
        self._next += 1
        name = SequenceId(f"0-{number}/0@0")
        if first:
            self._first[name] = self._queue.now
        spec = SequenceSpec(
            name, cast("tuple[int, ...]", PlaceholderPrompt(case.prompt)),
            SamplingParams(max_tokens=case.output, temperature=0.0, seed=mix64(case.seed ^ mix64(number))),
            output=(0,), time_left_s=1e6,
        )  # fmt: skip
        ticket = HandoffTicket(f"{name}!0", _NOWHERE, NodeId(""), "", "simulated", case.prompt, self._extents)
        self._instance.take(Adopt(spec, ticket))

    # ---- what a gateway hears ------------------------------------------------------------------------------------

    def hear(self, replica: ReplicaId, news: tuple[News, ...]) -> None:
        """See `Owner`. Requests never fail, and capacity suffices for all."""
        for one in news:
            match one:
                case Tokens():
                    if one.finish_reason is not None:
                        self._ended(one.sequence_id)
                case Adopted():
                    pass
                case _:
                    raise ServingError(f"a decode bench heard {one}")

    def _ended(self, sequence_id: SequenceId) -> None:
        began = self._first.pop(sequence_id, None)
        if began is not None:
            self.spans.append(self._queue.now - began)
            self._left -= 1
        if self._left:
            self._submit(first=False)


def measure_decode(cost: CostModel, case: DecodeCase) -> DecodeMeasure:
    """Keep a decode instance full and measure it."""
    return DecodeBench(cost, case).run()
