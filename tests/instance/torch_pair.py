"""Real models under real engines, in one thread: an aggregated one, or a prefill and a decode engine with a handoff."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from serving.ids import BlockId, NodeId, ReplicaId, SequenceId
from serving.instance.core.events import EngineMessage, HandoffReady, PullOrder
from serving.instance.core.ports import StepExecutor
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.instance.executors.torch_executor import TorchExecutor
from serving.model.kv_cache import KvCache
from serving.model.kv_shape import split_layers
from serving.model.model import Model
from serving.values.news import Tokens
from serving.values.sequence import BlockExtent, DraftUse, HandoffTicket, SequenceSpec
from tests.fakes.engine_calls import EngineCalls

MakeExecutor = Callable[[Model, KvCache], StepExecutor]


class TorchSide:
    """One engine with its executor and cache."""

    def __init__(self, model: Model, settings: EngineSettings, blocks: int, make: MakeExecutor = TorchExecutor) -> None:
        layers = len(model.config.layers) + settings.speculation
        split = split_layers(model.config) if settings.split is not None else None
        self.cache = KvCache(
            model.config, blocks, settings.block_tokens, model.dtype, model.device, num_layers=layers, split=split
        )
        # Earlier contents of a block must not matter: every value that is read was written, or is masked.
        self.cache.tensor.copy_(torch.randn(self.cache.tensor.shape, generator=torch.Generator().manual_seed(1)))
        self.executor = make(model, self.cache)
        self.engine = EngineCalls(settings, blocks)

    def step(self, now: float) -> tuple[tuple[PullOrder, ...], tuple[EngineMessage, ...]]:
        """One action, with its step if it has one."""
        action = self.engine.next_action(now)
        if action.plan is not None:
            self.engine.step_finished(self.executor.execute(action.plan), now)
        self.engine.check()
        return action.pulls, self.engine.take_events()


@dataclass
class Told:
    """Outcome of a run."""

    output: dict[str, list[int]] = field(default_factory=dict)
    uses: list[DraftUse] = field(default_factory=list)
    preemptions: int = 0
    prefix_hits: int = 0
    most_blocks: int = 0

    def take(self, event: EngineMessage) -> None:
        news = event.first if isinstance(event, HandoffReady) else event
        if isinstance(news, Tokens):
            self.output.setdefault(news.sequence_id, []).extend(news.tokens)
            if news.drafts is not None:
                self.uses.append(news.drafts)

    @property
    def acceptance(self) -> float:
        return sum(use.accepted for use in self.uses) / max(1, sum(use.drafted for use in self.uses))


def run_alone(
    model: Model,
    settings: EngineSettings,
    blocks: int,
    specs: list[SequenceSpec],
    make: MakeExecutor = TorchExecutor,
) -> Told:
    """All sequences through one engine; each joins two steps after the previous one."""
    side, told, waiting = TorchSide(model, settings, blocks, make), Told(), list(specs)
    for number in range(10_000):
        if waiting and number % 2 == 0:
            side.engine.add(waiting.pop(0), float(number))
        for event in side.step(float(number))[1]:
            told.take(event)
        told.most_blocks = max(told.most_blocks, side.engine.snapshot(0.0).kv_blocks_used)
        if not waiting and side.engine.idle():
            break
    snapshot = side.engine.snapshot(0.0)
    assert snapshot.kv_blocks_used == 0
    told.preemptions, told.prefix_hits = snapshot.preemptions_total, snapshot.prefix_hits_tokens_total
    return told


def run_pair(
    model: Model,
    settings: EngineSettings,
    blocks: int,
    specs: list[SequenceSpec],
    make: MakeExecutor = TorchExecutor,
) -> Told:
    """All sequences through a prefill and a decode engine."""
    from dataclasses import replace

    source = TorchSide(model, replace(settings, role=EngineRole.PREFILL), blocks, make)
    target = TorchSide(model, replace(settings, role=EngineRole.DECODE), blocks, make)
    told, orders = Told(), {spec.sequence_id: spec for spec in specs}
    for spec in specs:
        source.engine.add(spec, 0.0)
    for _ in range(10_000):
        for event in source.step(0.0)[1]:
            told.take(event)
            if isinstance(event, HandoffReady):
                _adopt(target.engine, orders[event.sequence_id], event)
        pulls, events = target.step(0.0)
        for event in events:
            told.take(event)
        for pull in pulls:
            _pull(source, target, pull)
        if source.engine.idle() and target.engine.idle():
            break
    assert source.engine.snapshot(0.0).kv_blocks_used == target.engine.snapshot(0.0).kv_blocks_used == 0
    return told


def _adopt(engine: EngineCalls, spec: SequenceSpec, event: HandoffReady) -> None:
    from msgspec.structs import replace

    extents = tuple(
        BlockExtent(block, 0, 0, event.hashes[index] if index < len(event.hashes) else b"")  # type: ignore[arg-type]
        for index, block in enumerate(event.blocks)
    )
    ticket = HandoffTicket(
        event.ticket_id, ReplicaId("p"), NodeId("n"), "/s", "l", event.computed_tokens, extents, drafts=event.drafts
    )
    engine.adopt(replace(spec, output=(*spec.output, *event.first.tokens)), ticket, 0.0)


def _pull(source: TorchSide, target: TorchSide, pull: PullOrder) -> None:
    for extent, block in zip(pull.ticket.blocks[pull.first_block :], pull.blocks, strict=True):
        target.cache.tensor[block] = source.cache.tensor[BlockId(extent.offset)]
    target.engine.pull_finished(SequenceId(pull.sequence_id), None, 0, 0.0)
    source.engine.release(pull.ticket.ticket_id, 0.0)


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(6, 320, (length,), generator=generator).tolist()
