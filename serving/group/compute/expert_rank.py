"""A rank that has experts only: slots, a window and a native loop. Imports neither torch nor the engine nor links.

Its experts come from the node's image of the weights, else from the checkpoint's files. Only forms that numpy cannot
read (`StoredExperts.readable`) import torch.
"""

import logging
import os
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from serving.config.experts import ExpertsConfig
from serving.config.serve import ServeConfig
from serving.errors import ConfigError, EngineError, GroupError, ModelError
from serving.group.compute.group_rank import GroupRank
from serving.group.compute.rank_experts import RankExperts
from serving.model.architecture import Architecture
from serving.model.config import read_architecture
from serving.model.dense_form import without_indexers
from serving.model.image import Image, ImageStore, config_fingerprint, image_key
from serving.model.kv_shape import layout_fingerprint, split_layers
from serving.model.native.layout import Form, NativeExpertSizes
from serving.model.native.library import Library, load
from serving.model.native.panel_layout import panel_fingerprint, short_weights_pay
from serving.model.native.rank_group import ExpertEngine, RankGroup
from serving.model.parcel import model_version, require_weights
from serving.model.slots.expert_slots import RoutedExperts, SharedSource, SlotTable
from serving.model.slots.stored_experts import (
    ImageExperts,
    StoredExperts,
    TensorFiles,
    expert_numbers,
    names_of_layers,
)
from serving.values.group import RegroupOrder
from serving.values.instances import InstancePlace

logger = logging.getLogger(__name__)

SERVE_S = 1.0
"""Longest call of the native loop: changed slots are published between two calls."""
STOP_S = 10.0
_SCRATCH_BYTES = 8 << 20
_MOST_ROWS = 512
"""Rows computed at once: a decode step's, as far as their inner values fit into the scratch memory."""


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Weights whose experts a rank holds.

    Args:
        dtype: `auto`, `float32` or `bfloat16`; version, coarse_drafts, short, bf16_results: as for `load_model`.
        block_tokens, kv_dtype: of the instances that compute with these experts; for `ExpertRank.layout`.
    """

    folder: Path
    dtype: str = "auto"
    version: str = ""
    coarse_drafts: bool = False
    short: bool | None = None
    bf16_results: bool = False
    block_tokens: int = 128
    kv_dtype: str = "auto"

    @classmethod
    def of(cls, config: ServeConfig) -> "ExpertWeights":
        """The weights that a configuration serves."""
        model, short = config.model, config.model.short_weights
        return cls(
            model.path,
            model.dtype,
            model.version,
            coarse_drafts=config.engine.drafts_by_layer,
            short=None if short == "auto" else short == "on",
            bf16_results=model.expert_results == "bfloat16",
            block_tokens=config.engine.block_tokens,
            kv_dtype=config.engine.kv_dtype,
        )


class ExpertRank(GroupRank):
    """A `GroupMember` without attention.

    Args:
        place: of a rank whose role is `EXPERTS`.
        threads: that compute rows; None = the host's cores shared by the expert ranks, since attention ranks wait
            meanwhile.
        images: the node's store of images; None = there is none.
    Raises: ConfigError if the model has no experts, or there is no native library; ModelError if they cannot be read;
        PlacementError, HardwareError as `RankParts`.
    Effects: makes UB segments; fills the slots; starts threads.
    """

    def __init__(
        self,
        config: ExpertsConfig,
        place: InstancePlace,
        weights: ExpertWeights,
        images: ImageStore | None = None,
        threads: int | None = None,
    ) -> None:
        assert place.rank is not None
        library = load()
        if library is None:
            raise ConfigError("expert ranks need the native step (see the log): unset attention_ranks, expert_ranks")
        opened = _Opened(library, weights, images, shared=config.shared == "experts")
        routed = RoutedExperts(
            opened.source, opened.config.expert_count, opened.gate, names_of_layers(opened.config, opened.numbers)
        )
        super().__init__(config, place, RankExperts(config, place.rank, routed, place.beside("slots")))
        self.layout = opened.layout()
        """See `Attached.layout`."""
        sizes = opened.sizes(shared=config.shared == "experts")
        if threads is None:
            threads = max(1, len(os.sched_getaffinity(0)) // (place.rank.expert_count or place.rank.ranks))
        self._engine = ExpertEngine(library, sizes, threads, _rows_at_once(sizes))
        group = RankGroup(self._engine, opened.config.expert_count)
        self.bind(group, max_rows=1, shared=opened.shared() if config.shared == "experts" else None)
        self._served = group
        self._joined, self._stopping = threading.Event(), threading.Event()
        self._failed = ""
        self._thread = threading.Thread(target=self._serve, name=f"experts-{place.rank.number}", daemon=True)

    def follow(self, order: RegroupOrder) -> None:
        """See `GroupRank.follow`. Effects: the first order starts the loop."""
        super().follow(order)
        self._joined.set()

    def start(self) -> None:
        """Start to serve, as soon as the rank has joined."""
        self._thread.start()

    def failed(self) -> str:
        """Why the loop has ended; empty while it runs, and after `stop`. Any thread."""
        return self._failed

    def stop(self) -> None:
        """Leave the group and end the loop. May be called twice."""
        self._stopping.set()
        self.leave()
        self._joined.set()
        self._served.wake()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)

    def _serve(self) -> None:
        self._joined.wait()
        try:
            while not self._stopping.is_set():
                self._served.serve(SERVE_S)
        except (EngineError, GroupError) as error:
            if not self._stopping.is_set():
                self._failed = str(error)
                logger.error("rank %d of %s has stopped serving: %s", self._rank.number, self._rank.group, error)


class _Opened:
    """Experts of some weights, and what is known of their model.

    Args:
        shared: whether shared experts are needed, too.
    """

    def __init__(
        self, library: Library, weights: ExpertWeights, images: ImageStore | None, *, shared: bool = False
    ) -> None:
        self._weights, self._with_shared = weights, shared
        config = replace(read_architecture(weights.folder), bf16_results=weights.bf16_results)
        self.config: Architecture = without_indexers(config)
        shape = self.config.experts
        if shape is None:
            raise ConfigError(f"a model of {config.model_type} has no routed experts to share: it has no expert ranks")
        if shared and not shape.shared_width:
            raise ConfigError(
                f'[experts] shared = "experts", but this model of {config.model_type} has no shared experts: set it to '
                '"attention"'
            )
        self._shape, self.gate = shape, shape.rule
        self.dtype = config.dtype if weights.dtype == "auto" else weights.dtype
        if self.dtype not in ("float32", "bfloat16"):
            raise ModelError(f"dtype {self.dtype!r} is not supported: use auto, float32 or bfloat16")
        short = weights.short
        self._short = short_weights_pay(library, weights.folder) if short is None else short
        self.version = weights.version or model_version(weights.folder)
        self._open(library, images)

    def layout(self) -> str:
        """Fingerprint of the KV of the ranks that these experts serve."""
        weights, config = self._weights, self.config
        drafting = weights.coarse_drafts and self._drafts
        split = None if drafting else split_layers(config)
        layers = len(config.layers) + drafting if split is None else split.layers
        form = self.dtype if weights.kv_dtype == "auto" else weights.kv_dtype
        return f"{layout_fingerprint(config, layers, weights.block_tokens, self.dtype, form, split)}-{self.version}"

    def shared(self) -> SlotTable:
        """The shared experts of all layers.

        Raises: ConfigError if they multiply rows of another form than routed ones, since rows are sent once.
        Effects: keeps them in memory.
        """
        table = SlotTable(self.source.layers)
        for layer in range(self.source.layers):
            shared, routed = self.source.shared(layer), self.source.expert(layer, 0)
            if (shared.gate_up.form == Form.INT8) != (routed.gate_up.form == Form.INT8):
                raise ConfigError(
                    '[experts] shared = "experts", but only one kind of experts, shared or routed, is INT8: set it '
                    'to "attention", or quantise both'
                )
            table.put(layer, shared)
        self.source.forget()
        table.publish()
        return table

    def sizes(self, *, shared: bool) -> NativeExpertSizes:
        """Sizes for an engine with experts only."""
        shape, clamped = self._shape, self._shape.clamped
        return NativeExpertSizes(
            form=Form.F32 if self.dtype == "float32" else Form.BF16,
            hidden=self.config.hidden_size,
            width=shape.width,
            shared_width=shape.shared_width if shared else 0,
            layers=len(self.numbers),
            experts=shape.experts,
            top_k=shape.per_token,
            bf16_results=self.config.bf16_results,
            gate_alpha=0.0 if clamped is None else clamped.alpha,
            gate_limit=0.0 if clamped is None else clamped.limit,
        )

    def _open(self, library: Library, images: ImageStore | None) -> None:
        image = None if images is None else self._image(images)
        if image is not None:
            self._drafts = image.manifest.drafts[0] < image.manifest.drafts[1]
            self.numbers = expert_numbers(self.config, drafts=self._drafts)
            self.source: SharedSource = ImageExperts(library, image, self.config, self.numbers)
            return
        folder, config = self._weights.folder, self.config
        require_weights(folder)
        first = f"model.layers.{len(config.layers)}."
        self._drafts = bool(config.drafts) and any(name.startswith(first) for name in TensorFiles(folder).names)
        self.numbers = expert_numbers(config, drafts=self._drafts)
        coarse = self._weights.coarse_drafts
        stored = StoredExperts(
            library, folder, config, self.numbers, self.dtype, coarse_drafts=coarse, short=self._short
        )
        self.source = stored if stored.readable(shared=self._with_shared) else self._with_torch()

    def _image(self, images: ImageStore) -> Image | None:
        """The image of these weights, if the node has it."""
        forms = panel_fingerprint(coarse_drafts=self._weights.coarse_drafts, short=self._short)
        found = images.load(image_key(self.config, self.version, self.dtype, "cpu", forms))
        if found is None:
            return None
        try:
            image = Image(found.data)
            if (image.manifest.config, image.manifest.dtype) != (config_fingerprint(self.config), self.dtype):
                raise ModelError("the model image is of another configuration or dtype")
        except ModelError as error:
            logger.warning("an image of the weights in the pool cannot be used (%s); reading the checkpoint", error)
            found.distrust()
            return None
        return image

    def _with_torch(self) -> SharedSource:
        import torch  # only for forms that nothing else reads

        from serving.model.loader import product_forms
        from serving.model.slots.expert_sources import CheckpointExperts

        weights, dtype = self._weights, {"float32": torch.float32, "bfloat16": torch.bfloat16}[self.dtype]
        forms = partial(
            product_forms, weights.folder, torch.device("cpu"), native=True,
            coarse_drafts=weights.coarse_drafts, short=self._short,
        )  # fmt: skip
        logger.info("experts of %s have a form that is read by torch", weights.folder.name)
        return CheckpointExperts(weights.folder, self.config, self.numbers, dtype, forms)


def _rows_at_once(sizes: NativeExpertSizes) -> int:
    number_bytes = (4 if sizes.form == Form.F32 else 2) + 1  # and as INT8
    row_bytes: int = sizes.top_k * (max(sizes.width, sizes.shared_width) + 64) * number_bytes
    return max(1, min(_MOST_ROWS, _SCRATCH_BYTES // row_bytes))
