"""Parts that make an instance a rank of a group: its window, its expert slots, its initial map."""

from collections.abc import Callable
from pathlib import Path

from serving.config.experts import ExpertsConfig
from serving.grammar.matcher import Matchers
from serving.group.compute.group_rank import GroupRank
from serving.group.compute.rank_experts import RankExperts
from serving.instance.executors.group_executor import NativeGroupExecutor
from serving.model.forms import ProductForms
from serving.model.kv_cache import KvCache
from serving.model.model import Model
from serving.model.slots.expert_sources import routed_experts
from serving.values.instances import InstancePlace


class RankParts(GroupRank):
    """Parts of one rank with attention in addition to those of any instance.

    Args:
        model: with routed experts, or with absent ones.
        forms: those that it was loaded with, made anew.
    Raises: PlacementError if the model has no experts for so many ranks; HardwareError if there is no memory for slots.
    Effects: makes UB segments in addition to the instance's own; fills the slots.
    """

    def __init__(
        self,
        config: ExpertsConfig,
        place: InstancePlace,
        model: Model,
        folder: Path,
        forms: Callable[[], ProductForms],
    ) -> None:
        assert place.rank is not None
        experts = RankExperts(config, place.rank, routed_experts(model, folder, forms), place.beside("slots"))
        super().__init__(config, place, experts)
        self._model = model

    def executor(
        self, cache: KvCache, threads: int, max_rows: int, matchers: Matchers | None = None, most_forced: int = 0
    ) -> NativeGroupExecutor:
        """The executor of this rank, which is to `join`. Effects: makes the rank's window."""
        made = NativeGroupExecutor(
            self._model,
            cache,
            threads=threads,
            max_rows=max_rows,
            expert_shapes=self.experts.shapes(),
            matchers=matchers,
            most_forced=most_forced,
        )
        made.use_micro_batches(self._config.micro_batches)
        self.bind(made.group)
        return made
