"""Groups of ranks as threads of one process: each with an engine, an executor and a KV cache of its own.

The native step releases Python's lock, so ranks wait for one another as processes do. Weights are loaded once; slots
point into them.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hardware.ub.exchange_layout import WindowShape
from serving.grammar.guidance import GuidanceRoute, PythonRoute
from serving.ids import SequenceId
from serving.instance.core.ports import StepExecutor
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.instance.executors.group_executor import NativeGroupExecutor
from serving.instance.executors.native_grammar import route_for_steps
from serving.model.experts import ExpertLayer, LocalExperts
from serving.model.kv_cache import KvCache
from serving.model.kv_shape import KvDtype
from serving.model.loader import DtypeName, load_model
from serving.model.model import Model
from serving.model.native.layout import MAP_POSITIONS, NativeLinear
from serving.model.native.library import load
from serving.model.native.panels import PanelLinear
from serving.model.native.rank_group import GroupPlace, format_window, window_bytes
from serving.values.news import Tokens
from serving.values.sequence import SamplingParams, SequenceSpec, TokenLogprobs
from tests.fakes.engine_calls import EngineCalls
from tests.instance.native_grammars import matchers_of
from tests.model.int8_checkpoint import quantised_checkpoint
from tests.model.random_checkpoint import write_random_checkpoint

BLOCK_TOKENS = 4
BLOCKS = 256
SETTINGS = EngineSettings(
    role=EngineRole.AGGREGATED, block_tokens=BLOCK_TOKENS, max_step_tokens=24, max_sequences=6, max_waiting=1000,
    max_model_len=256, watermark_blocks=1,
)  # fmt: skip
IDLE_S = 0.02


def expert_layers(model: Model) -> list[LocalExperts]:
    """Experts of all layers that have some; the draft layer's are last."""
    blocks = [*model.blocks, *(layer.block for layer in model.mtp[:1])]
    found = [block.feed.experts for block in blocks if isinstance(block.feed, ExpertLayer)]
    return [experts for experts in found if isinstance(experts, LocalExperts)]


@dataclass
class MappedSlots:
    """`SlotArrays` that never change."""

    gate_up: "ctypes.Array[NativeLinear]"
    down: "ctypes.Array[NativeLinear]"

    def publish(self) -> None:
        """Publish no changes."""


@dataclass
class Spread:
    """Placement of experts: homes of each, and contents of each rank's slots in order."""

    expert_map: NDArray[np.uint32]
    contents: list[list[tuple[int, int]]]
    """[rank] (layer, expert) by slot."""
    homes: dict[tuple[int, int], list[int]]
    """By (layer, expert): rank << 16 | slot of each."""


def random_spread(
    layers: int, experts: int, ranks: int, rng: Random, copies: float = 0.5, only: Sequence[int] | None = None
) -> Spread:
    """Every expert at one or several ranks, in any order.

    Args:
        copies: chance of each further home.
        only: ranks that hold experts; default all.
    """
    contents: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    homes: dict[tuple[int, int], list[int]] = {}
    for layer in range(layers):
        for expert in rng.sample(range(experts), experts):
            first = rng.choice(only or range(ranks))
            others = [rank for rank in range(ranks) if rank != first and rng.random() < copies]
            for rank in (first, *others):
                homes.setdefault((layer, expert), []).append(rank << 16 | len(contents[rank]))
                contents[rank].append((layer, expert))
    return Spread(random_map(homes, layers, experts, rng), contents, homes)


def random_map(homes: dict[tuple[int, int], list[int]], layers: int, experts: int, rng: Random) -> NDArray[np.uint32]:
    """A map with any of each expert's homes at every position."""
    table = [
        [[rng.choice(homes[layer, expert]) for expert in range(experts)] for _ in range(MAP_POSITIONS)]
        for layer in range(layers)
    ]
    return np.array(table, np.uint32)


def mapped_slots(model: Model, contents: Sequence[tuple[int, int]], spare: int = 1) -> MappedSlots:
    """Slots that point into the loaded model; some additional ones are empty."""
    layers = expert_layers(model)
    count = len(contents) + spare
    gate_up, down = (NativeLinear * count)(), (NativeLinear * count)()
    for slot, (layer, expert) in enumerate(contents):
        for array, product in ((gate_up, layers[layer].gate_up[expert]), (down, layers[layer].down[expert])):
            assert isinstance(product, PanelLinear)
            ctypes.memmove(ctypes.byref(array[slot]), ctypes.byref(product.linear), ctypes.sizeof(NativeLinear))
    return MappedSlots(gate_up, down)


def window_memory(nbytes: int) -> memoryview:
    """Aligned memory that any thread may write."""
    whole = np.zeros(nbytes + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole.data[start : start + nbytes]


@dataclass
class Answer:
    """Complete result of a request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    masked: int = 0


def drive(
    executor: StepExecutor,
    specs: Sequence[SequenceSpec],
    settings: EngineSettings,
    idle: Callable[[], bool] = lambda: False,
    between: Callable[[int], None] = lambda step: None,
    answers: dict[SequenceId, Answer] | None = None,
) -> dict[SequenceId, Answer]:
    """Run requests through an engine, then stay idle until `idle` returns false.

    Args:
        between: called before each step with its number.
        answers: filled in, for callers that read it during the run.
    """
    engine = EngineCalls(settings, BLOCKS)
    answers = {} if answers is None else answers
    answers |= {spec.sequence_id: Answer() for spec in specs}
    for spec in specs:
        assert engine.add(spec, 0.0) is None
    steps = 0
    while True:
        plan = engine.next_action(0.0).plan
        if plan is None:
            if not idle():
                break
            continue
        between(steps)
        steps += 1
        engine.step_finished(executor.execute(plan), 0.0)
        for news in engine.take_events():
            assert isinstance(news, Tokens), news
            answer = answers[news.sequence_id]
            answer.tokens += news.tokens
            answer.logprobs += news.logprobs
            answer.prompt_logprobs += news.prompt_logprobs
            answer.masked += news.masked
    engine.check()
    assert engine.idle()
    return answers


class RankThreads:
    """A group over one checkpoint.

    Args:
        ranks: number of ranks.
        seed: of the placement of experts.
        copies, homes: as `copies` and `only` of `random_spread`.
        seen: windows as a rank sees them, of its number and of all ranks' own ones; default: these.
    """

    def __init__(
        self,
        folder: Path,
        dtype: DtypeName,
        ranks: int,
        seed: int = 0,
        *,
        settings: EngineSettings = SETTINGS,
        kv_dtype: KvDtype = "auto",
        threads: int = 1,
        short: bool | None = None,
        bf16_results: bool = False,
        copies: float = 0.5,
        homes: Sequence[int] | None = None,
        deadline_s: float = 60.0,
        seen: Callable[[int, list[memoryview], WindowShape], list[memoryview]] = lambda rank, own, shape: own,
    ) -> None:
        self.settings, self.ranks, self._kv_dtype, self._threads = settings, ranks, kv_dtype, threads
        self._folder = folder
        self.model = load_model(
            folder,
            dtype=dtype,
            native=True,
            coarse_drafts=settings.speculation,
            short=short,
            bf16_results=bf16_results,
        )
        self.layers = len(expert_layers(self.model))
        self.experts = self.model.config.expert_count
        self.spread = random_spread(self.layers, self.experts, ranks, Random(seed), copies, homes)
        self.executors = [self._executor(route_for_steps(), settings.forced_tokens) for _ in range(ranks)]
        for rank, executor in enumerate(self.executors):  # ranks choose on their own, and tokens do not depend on it
            executor.use_micro_batches(1 + (rank + seed) % 2)
        shape = self.executors[0].group.window_shape(ranks)
        library = load()
        assert library is not None
        self.windows = [window_memory(window_bytes(shape)) for _ in range(ranks)]
        for rank, window in enumerate(self.windows):
            format_window(library, window, shape, rank, (1 << ranks) - 1)
        contents, table, process = self.spread.contents, self.spread.expert_map, os.getpid()
        self.places = [
            GroupPlace(
                rank, seen(rank, self.windows, shape), [process] * ranks, mapped_slots(self.model, contents[rank]),
                table, cores=2, deadline_s=deadline_s,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        for executor, place in zip(self.executors, self.places, strict=True):
            executor.group.join(place)

    def _executor(self, route: GuidanceRoute, most_forced: int) -> NativeGroupExecutor:
        layers = len(self.model.config.layers) + self.settings.speculation
        config, dtype = self.model.config, self.model.dtype
        cache = KvCache(config, BLOCKS, BLOCK_TOKENS, dtype, num_layers=layers, kv_dtype=self._kv_dtype)
        return NativeGroupExecutor(
            self.model,
            cache,
            threads=self._threads,
            max_rows=self.settings.max_step_tokens,
            matchers=matchers_of(self._folder, route),
            most_forced=most_forced,
        )

    def other_map(self, seed: int) -> NDArray[np.uint32]:
        """Another assignment of rows to the experts' homes."""
        return random_map(self.spread.homes, self.layers, self.experts, Random(seed))

    def alone(self, specs: Sequence[SequenceSpec]) -> dict[SequenceId, Answer]:
        """Results of one process with all experts; the masks of its grammars are made in Python."""
        return drive(self._executor(PythonRoute(), 0), specs, self.settings)

    def together(
        self,
        work: Sequence[Sequence[SequenceSpec]],
        between: Callable[[int, int], None] = lambda rank, step: None,
        limit_s: float = 120.0,
        at_end: Callable[[], None] = lambda: None,
    ) -> list[dict[SequenceId, Answer]]:
        """Results of the ranks, each for its own requests.

        Args:
            between: called by each rank's thread before its steps, with rank and number of step.
            at_end: called when all are idle: afterwards no rank may get work that involves its peers.
        """
        answers: list[dict[SequenceId, Answer]] = [{} for _ in work]
        failures: list[BaseException] = []
        busy = threading.Semaphore(0)
        over = threading.Event()

        def run(rank: int) -> None:
            told = False

            def idle() -> bool:
                nonlocal told
                if not told:
                    told = True
                    busy.release()
                self.executors[rank].serve(IDLE_S)
                return not over.is_set()

            try:
                answers[rank] = drive(
                    self.executors[rank], work[rank], self.settings, idle, lambda step: between(rank, step)
                )
            except BaseException as error:
                failures.append(error)
                busy.release()

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(work))]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + limit_s
        for _ in threads:
            assert busy.acquire(timeout=max(0.0, deadline - time.monotonic())), "the ranks did not end in time"
        at_end()
        over.set()
        for executor in self.executors:
            executor.wake()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if failures:
            raise failures[0]
        return answers


def checkpoint(kind: str, folder: Path, **shape: Any) -> tuple[Path, DtypeName]:
    if kind == "int8":
        return quantised_checkpoint(folder, dtype="bfloat16", **shape), "bfloat16"
    assert kind in ("float32", "bfloat16")
    return write_random_checkpoint(folder, dtype=kind, **shape), kind  # type: ignore[arg-type, return-value]


def prompts(count: int, rng: Random, longest: int = 60) -> list[list[int]]:
    """Random ids, some with a common prefix."""
    stem = [rng.randrange(6, 320) for _ in range(longest // 2)]
    found = []
    for _ in range(count):
        own = [rng.randrange(6, 320) for _ in range(rng.randrange(1, longest // 2))]
        found.append([*stem[: rng.choice((0, 0, 16, len(stem)))], *own])
    return found


LONG_SETTINGS = replace(SETTINGS, max_step_tokens=480)


def long_specs() -> list[SequenceSpec]:
    """Requests whose prompts are computed two at a time: more rows than a small session has."""
    rng, sampling = Random(8), SamplingParams(temperature=0.0, max_tokens=2)
    drawn = [tuple(rng.randrange(6, 320) for _ in range(240)) for _ in range(4)]
    return [SequenceSpec(SequenceId(f"long-{number}"), prompt, sampling) for number, prompt in enumerate(drawn)]


torch.set_num_threads(1)
