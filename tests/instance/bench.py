"""One engine on a test bench: call by call, with a fake executor."""

from dataclasses import replace

from serving.ids import BlockHash, NodeId, ReplicaId, SequenceId
from serving.instance.core.events import (
    EngineMessage,
)
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.values.prefix_hash import prefix_hashes
from serving.values.sequence import BlockExtent, HandoffTicket, SamplingParams, SequenceSpec
from serving.values.step_plan import StepPlan
from tests.fakes.engine_calls import EngineCalls
from tests.fakes.executor import FakeExecutor

SETTINGS = EngineSettings(
    block_tokens=4, max_step_tokens=16, max_sequences=4, max_waiting=3, max_model_len=64, watermark_blocks=0,
    handoff_lease_s=5.0,
)  # fmt: skip
PROMPT = tuple(range(10))


def spec(name: str, prompt: tuple[int, ...] = PROMPT, output: tuple[int, ...] = (), **sampling: object) -> SequenceSpec:
    values: dict[str, object] = {"max_tokens": 5} | sampling
    return SequenceSpec(SequenceId(name), prompt, SamplingParams(**values), output)  # type: ignore[arg-type]


def ticket_for(one: SequenceSpec, computed: int | None = None) -> HandoffTicket:
    tokens = [*one.prompt, *one.output]
    computed = len(tokens) - 1 if computed is None else computed
    hashes = prefix_hashes(tokens[:computed], 4)
    extents = [
        BlockExtent(index, 0, 4, hashes[index] if index < len(hashes) else BlockHash(b""))
        for index in range(-(-computed // 4))
    ]
    return HandoffTicket("t1", ReplicaId("p"), NodeId("n"), "/s", "l", computed, tuple(extents))


class Bench:
    """An engine and a fake executor; `step` runs one whole step."""

    def __init__(self, role: EngineRole = EngineRole.AGGREGATED, blocks: int = 32, **changes: object) -> None:
        self.engine = EngineCalls(replace(SETTINGS, role=role, **changes), blocks)  # type: ignore[arg-type]
        self.executor = FakeExecutor(blocks, 4)
        self.now = 0.0

    def begin(self) -> StepPlan | None:
        plan = self.engine.next_action(self.now).plan
        self.engine.check()
        return plan

    def step(self) -> tuple[EngineMessage, ...]:
        plan = self.begin()
        if plan is not None:
            self.engine.step_finished(self.executor.execute(plan), self.now)
        self.engine.check()
        return self.engine.take_events()

    @property
    def used(self) -> int:
        return self.engine.snapshot(self.now).kv_blocks_used
