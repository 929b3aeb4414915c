"""The port between an instance's compute and its loaded model, in torch or on an image of its weights."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from serving.grammar.matcher import Matchers
from serving.instance.core.ports import StepExecutor
from serving.kvpool.live.context_cache import ArenaMirror
from serving.model.architecture import Architecture
from serving.model.kv_shape import KvDtype, SplitLayers

if TYPE_CHECKING:
    from serving.group.compute.rank_parts import RankParts  # imports torch


@dataclass(frozen=True, slots=True)
class Arena:
    """Memory for the KV blocks of an instance.

    Args:
        memory: writable, all zero.
        layers: per block, unless `split` divides them.
    """

    memory: memoryview
    blocks: int
    block_tokens: int
    layers: int
    kv_dtype: KvDtype
    split: SplitLayers | None


@dataclass(frozen=True, slots=True)
class StepSettings:
    """Settings of an executor: threads, most rows of a step, matchers of grammars, most forced draft tokens."""

    threads: int
    max_rows: int
    matchers: Matchers
    forced_tokens: int


@dataclass(frozen=True, slots=True)
class AttachedPart:
    """A model with its KV cache.

    Args:
        layout: fingerprint of the cache.
        computes: name of what computes, for status pages.
    """

    executor: StepExecutor
    layout: str
    computes: str
    mirror: ArenaMirror | None = None


class ModelPart(Protocol):
    """A loaded model, before it has a KV cache. `dtype` is `float32` or `bfloat16`."""

    config: Architecture
    dtype: str
    drafts: bool
    """Whether there is a draft layer."""
    rank: "RankParts | None"
    """Parts of a rank of a group."""

    def attach(self, arena: Arena, settings: StepSettings) -> AttachedPart:
        """Put the KV cache on the arena. Called once. Raises: ModelError."""
        ...
