"""Groups of attention ranks and expert ranks as threads of one process, and the part of their shell.

Ranks are the real ones: `RankParts` without slots, and `ExpertRank`, whose experts are read without torch.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import torch

from serving.config.experts import ExpertsConfig
from serving.grammar.guidance import PythonRoute
from serving.group.compute.expert_rank import ExpertRank, ExpertWeights
from serving.group.compute.group_rank import GroupRank
from serving.group.compute.rank_parts import RankParts
from serving.group.core.group_map import regroup_map
from serving.ids import NodeId, ReplicaId, SequenceId
from serving.instance.core.settings import EngineSettings
from serving.instance.executors.group_executor import NativeGroupExecutor
from serving.instance.executors.native_executor import NativeExecutor
from serving.instance.executors.native_grammar import route_for_steps
from serving.model.image import ImageStore
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model, product_forms
from serving.sockets.secrets import ClusterSecrets
from serving.values.group import RankOffer, RankRole, RegroupOrder
from serving.values.instances import InstancePlace, RankPlace
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.group.rank_threads import BLOCK_TOKENS, BLOCKS, SETTINGS, Answer, drive, prompts
from tests.instance.native_grammars import grammar_sampling, matchers_of

FIRST_EXPERT = 4
"""Number of the first expert rank; windows have room for twice as many ranks."""
CONFIG = ExpertsConfig(policy="none", micro_batches="2", deadline_s=60.0)


@dataclass(frozen=True)
class Setting:
    """What a group computes, and how many ranks of each kind it starts with."""

    folder: Path
    attention: int = 1
    experts: int = 1
    settings: EngineSettings = SETTINGS
    config: ExpertsConfig = CONFIG
    images: ImageStore | None = None
    bf16_results: bool = False
    far: Sequence[int] = ()
    """Ranks on another host."""

    @property
    def coarse(self) -> bool:
        """Whether draft layers are INT8."""
        return self.settings.speculation

    def place(self, number: int, shm: Path, birth: int = 0) -> InstancePlace:
        """Place of a rank: below `FIRST_EXPERT` one with attention."""
        expert = number >= FIRST_EXPERT
        rank = RankPlace(
            number, self.attention, 2 * FIRST_EXPERT, "decode#x", RankRole.EXPERTS if expert else RankRole.ATTENTION,
            expert_index=max(0, number - FIRST_EXPERT), expert_count=self.experts,
        )  # fmt: skip
        path = shm / f"rank-{number}-{birth}"
        node = NodeId("far" if number in self.far else "near")
        return InstancePlace(ReplicaId(f"r{number}"), "decode", node, (), path, "127.0.0.1", 1, rank)

    def expert_rank(self, number: int, shm: Path, birth: int = 0) -> ExpertRank:
        """An expert rank, as its process makes it."""
        weights = ExpertWeights(self.folder, coarse_drafts=self.coarse, bf16_results=self.bf16_results)
        rank = ExpertRank(self.config, self.place(number, shm, birth), weights, self.images)
        self._listen(rank)
        return rank

    def attention_rank(self, number: int, shm: Path, birth: int = 0) -> tuple[RankParts, NativeGroupExecutor]:
        """An attention rank, with a model without experts."""
        torch.set_num_threads(1)
        model = self._model(routed_experts=self.images is not None)
        forms = partial(product_forms, self.folder, model.device, native=True, coarse_drafts=self.coarse)
        parts = RankParts(self.config, self.place(number, shm, birth), model, self.folder, forms)
        rows, matchers = self.settings.max_step_tokens, matchers_of(self.folder, route_for_steps())
        executor = parts.executor(self._cache(model), 1, rows, matchers, self.settings.forced_tokens)
        self._listen(parts)
        return parts, executor

    def _listen(self, rank: GroupRank) -> None:
        if self.config.across_nodes:
            rank.listen("127.0.0.1", ClusterSecrets(("of both hosts",)), silence_s=self.config.deadline_s)

    def alone(self, specs: Sequence[SequenceSpec]) -> dict[SequenceId, Answer]:
        """Results of one process with all experts."""
        model, matchers = self._model(routed_experts=True), matchers_of(self.folder, PythonRoute())
        rows = self.settings.max_step_tokens
        return drive(
            NativeExecutor(model, self._cache(model), threads=1, max_rows=rows, matchers=matchers), specs, self.settings
        )

    def _model(self, *, routed_experts: bool) -> Any:
        return load_model(
            self.folder, native=True, coarse_drafts=self.coarse, routed_experts=routed_experts, images=self.images,
            bf16_results=self.bf16_results,
        )  # fmt: skip

    def _cache(self, model: Any) -> KvCache:
        layers = len(model.config.layers) + self.settings.speculation
        return KvCache(model.config, BLOCKS, BLOCK_TOKENS, model.dtype, num_layers=layers)


def order_from(offers: Sequence[RankOffer], epoch: int, version: int, *, masks: bool = False) -> RegroupOrder:
    """The order by which the ranks of these offers form a group.

    Args:
        masks: whether experts that none of them has are masked.
    """
    held = {one.rank: one.held for one in offers if one.role.has_experts}
    map_ = regroup_map(held, 2 * FIRST_EXPERT, offers[0].experts, version, masks=masks)
    return RegroupOrder(epoch, map_, tuple(offers))


class SplitGroup:
    """A group; a context manager that ends it."""

    def __init__(self, setting: Setting, shm: Path) -> None:
        self.setting, self._shm, self.epoch, self._version, self._births = setting, shm, 1, 1, 0
        self.attention = {number: setting.attention_rank(number, shm) for number in range(setting.attention)}
        numbers = range(FIRST_EXPERT, FIRST_EXPERT + setting.experts)
        self.experts = {number: setting.expert_rank(number, shm) for number in numbers}
        for rank in self.experts.values():
            rank.start()
        self._follow(self.members)

    @property
    def members(self) -> list[GroupRank]:
        """All ranks."""
        return [*(parts for parts, _ in self.attention.values()), *self.experts.values()]

    def _follow(self, ranks: Sequence[GroupRank]) -> None:
        order = order_from([rank.offer("x") for rank in self.members], self.epoch, self._version)
        for rank in ranks:
            rank.follow(order)

    def begin_epoch(self) -> None:
        """Begin an epoch with the present ranks, after an expert rank was lost or added."""
        self.epoch += 1
        self._version += 1
        self._follow(self.members)
        for rank in self.members:
            rank.begin(self.epoch, [*self.attention, *self.experts])

    def join(self, number: int) -> None:
        """Start an attention rank in this epoch, in the place of the one before, if any."""
        self._births += 1
        self.attention[number] = self.setting.attention_rank(number, self._shm, self._births)
        self._follow(self.members)

    def leave(self, number: int) -> None:
        """Let an attention rank go, in this epoch."""
        parts, _ = self.attention.pop(number)
        self._follow(self.members)
        parts.leave()
        parts.close()

    def run(
        self, work: Mapping[int, Sequence[SequenceSpec]], between: Callable[[int, int], None] = lambda rank, step: None
    ) -> dict[SequenceId, Answer]:
        """Results of attention ranks, each for its own requests.

        Args:
            between: called by each rank's thread before its steps, with rank and number of step.
        """
        answers: dict[SequenceId, Answer] = {}
        failures: list[BaseException] = []

        def one(rank: int) -> None:
            try:
                executor = self.attention[rank][1]
                answers.update(drive(executor, work[rank], self.setting.settings, between=partial(between, rank)))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
            assert not thread.is_alive(), "a rank did not end in time"
        if failures:
            raise failures[0]
        assert not any(rank.failed() for rank in self.experts.values())
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for expert in self.experts.values():
            expert.stop()
        for rank in self.members:
            rank.close()


def specs_of(rank: int, feature: str, count: int = 4) -> list[SequenceSpec]:
    """Requests of one rank."""
    rng = Random(f"{feature}{rank}")
    found = []
    for number, prompt in enumerate(prompts(count, rng)):
        sampling: dict[str, Any] = {"temperature": 0.0, "max_tokens": rng.randrange(4, 14)}
        if feature == "logprobs":
            sampling |= {"temperature": 0.8, "seed": number, "logprobs": 2, "prompt_logprobs": 1}
        params = grammar_sampling(number) if feature == "grammar" else SamplingParams(**sampling)
        stem = [7 + i for i in range(16)] if feature == "prefix" else []
        found.append(SequenceSpec(SequenceId(f"{rank}-{number}"), (*stem, *prompt), params))
    return found


def with_drafts(settings: EngineSettings, drafts: int) -> EngineSettings:
    """The settings with so many draft tokens."""
    return replace(settings, draft_tokens=drafts, speculation=drafts > 0)
