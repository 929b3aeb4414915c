"""A model that the native library computes, on the pool's copy of its weights. Imports no torch.

Reading a checkpoint takes torch. If the pool does not have the weights yet, a child process puts them there and ends.
"""

import ctypes
import fcntl
import logging
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from serving.allocator import return_freed_memory
from serving.config.kvcache import KvCacheConfig
from serving.config.serve import ServeConfig
from serving.errors import ModelError
from serving.ids import NodeId, ReplicaId
from serving.instance.executors.native_executor import NativeExecutor
from serving.instance.live.model_part import Arena, AttachedPart, StepSettings
from serving.instance.live.pool_access import PoolAccess
from serving.model.architecture import Architecture
from serving.model.config import read_architecture
from serving.model.dense_form import without_indexers
from serving.model.image import Image, ImageStore, MappedImage, awaited_image, image_key
from serving.model.kv_arena import KvArena
from serving.model.native import library as native_library
from serving.model.native.image_model import ImageModel
from serving.model.native.library import Library
from serving.model.native.panel_layout import panel_fingerprint, short_weights_pay
from serving.model.parcel import lacks_weights, model_version
from serving.sockets.secrets import ClusterSecrets
from serving.values.instances import InstancePlace
from serving.values.pool_view import PoolView

if TYPE_CHECKING:
    from serving.group.compute.rank_parts import RankParts

logger = logging.getLogger(__name__)

WRITE_S = 3600.0
"""Longest time for a child to read a checkpoint and write the image."""
TURN_S = 120.0
"""How long to wait while another process of this host has a child for the same model."""
_TURN_PAUSE_S = 0.05
_INSTRUCTIONS = {"amx": "AMX", "avx512": "AVX-512", "avx2": "AVX2"}
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """An image of a model's weights for the native library, and the pool to keep it in.

    Args:
        dtype: `auto`, `float32` or `bfloat16`; version, coarse_drafts, short, bf16_results: as for `load_model`.
        replica, node, pool, secret, view: for the `PoolAccess` of the child.
    """

    folder: Path
    dtype: str
    version: str
    coarse_drafts: bool
    short: bool
    bf16_results: bool
    replica: ReplicaId
    node: NodeId
    pool: KvCacheConfig
    secret: str | ClusterSecrets = field(repr=False)
    view: PoolView

    def architecture(self) -> Architecture:
        """The architecture that is computed."""
        return without_indexers(replace(read_architecture(self.folder), bf16_results=self.bf16_results))

    def key(self, config: Architecture) -> str:
        """Key of the image, as `load_model` makes it."""
        forms = panel_fingerprint(coarse_drafts=self.coarse_drafts, short=self.short)
        dtype = config.dtype if self.dtype == "auto" else self.dtype
        return image_key(config, self.version or model_version(self.folder), dtype, "cpu", forms)


class NativePart:
    """A `ModelPart` on an image."""

    rank: "RankParts | None" = None

    def __init__(self, model: ImageModel) -> None:
        self._model = model
        self.config, self.dtype, self.drafts = model.config, model.dtype, model.drafts

    def attach(self, arena: Arena, settings: StepSettings) -> AttachedPart:
        """See `ModelPart.attach`."""
        cache = KvArena(
            self.config,
            arena.blocks,
            arena.block_tokens,
            self.dtype,
            arena.memory,
            num_layers=arena.layers,
            kv_dtype=arena.kv_dtype,
            split=arena.split,
        )
        executor = NativeExecutor(
            self._model,
            cache,
            threads=settings.threads,
            max_rows=settings.max_rows,
            matchers=settings.matchers,
            most_forced=settings.forced_tokens,
        )
        return AttachedPart(executor, cache.layout_fingerprint, native_name())


def native_part(config: ServeConfig, place: InstancePlace, access: PoolAccess | None) -> NativePart | None:
    """The model on the pool's image of its weights, which a child process writes if it is missing.

    Returns: None if that is impossible; the log has the reason, unless the pool keeps no weights.
    """
    library = native_library.load()
    images = access.model_cache(place.replica, place.node) if access is not None else None
    if library is None or images is None or access is None:
        return None
    try:
        request = _request(config, place, access, library)
        shape = request.architecture()
        image = _image(images, request, request.key(shape))
        if image is None:
            return None
        try:
            dtype = shape.dtype if request.dtype == "auto" else request.dtype
            return NativePart(ImageModel(library, Image(image.data), shape, dtype))
        except ModelError:
            image.distrust()
            raise
    except ModelError as error:
        logger.warning("weights in the pool cannot be used (%s); reading the checkpoint in this process", error)
        return None
    finally:
        images.close()  # the process keeps the mapping
        return_freed_memory()


def native_name() -> str:
    """Name of the native step with its instruction set, for status pages."""
    return f"native step, {_INSTRUCTIONS.get(native_library.instructions() or '', 'no vector instructions')}"


def _request(config: ServeConfig, place: InstancePlace, access: PoolAccess, library: Library) -> ImageRequest:
    model = config.model
    short = short_weights_pay(library, model.path) if model.short_weights == "auto" else model.short_weights == "on"
    return ImageRequest(
        folder=model.path,
        dtype=model.dtype,
        version=model.version,
        coarse_drafts=config.engine.drafts_by_layer,
        short=short,
        bf16_results=model.expert_results == "bfloat16",
        replica=place.replica,
        node=place.node,
        pool=access.config,
        secret=access.secret,
        view=access.view(),
    )


def _image(images: ImageStore, request: ImageRequest, key: str) -> MappedImage | None:
    """The image, written by a child if it is missing."""
    image = images.load(key)
    if image is None and lacks_weights(request.folder):
        return awaited_image(images, key)
    if image is None:
        with _turn(request.folder):
            image = images.load(key)
            if image is None and _written(request, key):
                image = images.load(key)
    return image


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Let one process of this host at a time have a child for a model: two would only compete for its cores.

    Waits `TURN_S` at most, and not at all on a file system without locks.
    """
    with (folder / "config.json").open("rb") as file:
        end = time.monotonic() + TURN_S
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_TURN_PAUSE_S)
            except OSError:
                break
        yield


def _written(request: ImageRequest, key: str) -> bool:
    """Let a child write the image; it ends with this process. Returns: whether it did; otherwise the log says why."""
    libc = ctypes.CDLL(None)
    run = "from serving.instance.live.image_writer import main; main()"
    program = f"import sys; sys.path[:] = {sys.path!r}; {run}"
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program],
            input=pickle.dumps((request, key)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=WRITE_S,
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("no process could write the weights into the pool (%s); reading them in this one", error)
        return False
    if child.returncode:
        reason = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        logger.warning("the weights could not be put into the pool (%s); reading them in this process", reason)
    return not child.returncode
