"""The native library on every instruction set that this machine can test, and AMX's with its tiles in software."""

import contextlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from serving.errors import ModelError
from serving.model.linear import LinearWeight
from serving.model.native import build
from serving.model.native.library import Library, load
from serving.model.native.panels import PanelForms, PanelHeads, PanelLinear
from tests.model.native.kernels import instruction_sets

NAMES = ("portable", "avx2", "avx512", "soft_tiles", "amx")

# Only what the tiles need, and quickly compiled: the soft tiles are slow anyway.
_SOFT_FLAGS = ("-shared", "-DCM_SOFT_TILES", "-O1")
_SOFT_INSTRUCTIONS = {"isa_amx": build.INSTRUCTIONS["isa_avx512"]}


@cache
def soft_tiles(folder: Path) -> Library:
    """A library whose AMX kernels run without AMX; compiled once for these sources."""
    path = folder / f"soft-{build.source_fingerprint()}.so"
    with build.lock(folder / "soft.lock"):
        if not path.exists():
            build.build(path, build.find_compiler(), build.library_sources(), _SOFT_FLAGS, _SOFT_INSTRUCTIONS)
    return Library(path)


def own_library() -> Library:
    """This machine's library; skips a test without one."""
    found = load()
    if found is None:
        pytest.skip("there is no native library here")
    return found


@contextlib.contextmanager
def computing_with(name: str, folder: Path) -> Iterator[Library]:
    """The library, restricted to the named instructions for the block; skips a test if the processor lacks them.

    Args:
        folder: caches the library with soft tiles.
    """
    if name == "soft_tiles" and name not in instruction_sets():
        pytest.skip("this processor has no AVX-512, which runs beside the soft tiles")
    library = soft_tiles(folder) if name == "soft_tiles" else own_library()
    before = library.instructions
    try:
        library.use_instructions("amx" if name == "soft_tiles" else name)
    except ModelError as error:
        pytest.skip(str(error))
    yield library
    library.use_instructions(before)


def panels(library: Library, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None) -> PanelLinear:
    """A product as panels."""
    made = PanelForms(library).linear(LinearWeight(weight, bias, scale))
    assert isinstance(made, PanelLinear)
    return made


def heads(library: Library, weight: Tensor, scale: Tensor | None = None) -> PanelHeads:
    """Heads as panels; with a scale W8A16."""
    made = PanelForms(library).heads(LinearWeight(weight, None, scale, weight_only=scale is not None))
    assert isinstance(made, PanelHeads)
    return made


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight as int8 with a scale per row."""
    scale = weight.abs().amax(1).clamp_min(1e-9) / 127
    return (weight / scale.unsqueeze(1)).round().to(torch.int8), scale
