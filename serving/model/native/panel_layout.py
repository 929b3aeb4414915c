"""Names and choice of the panels' forms. Imports no torch: expert ranks pack and read panels, too."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from serving.errors import ModelError
from serving.model.native.layout import Form, NativeLinear
from serving.model.native.library import Library
from serving.model.size import weight_bytes

LAYOUT = b"panels-2"
"""Name of the layout in pack.h; raise it with every change, because images outlive releases."""
W8A16_LAYOUT = LAYOUT + b"/w8a16"
EITHER_LAYOUT = LAYOUT + b"/short"
"""64 bytes, the first of which is the form, BF16_SHORT or BF16; then the panels."""
HEAD_BYTES = 64
STORED_FORMS = {"float32": Form.F32, "bfloat16": Form.BF16, "int8": Form.INT8}
"""Usual form of a weight, by the name of its dtype."""
_BF16_BYTES = 2


def panel_fingerprint(*, coarse_drafts: bool, short: bool) -> str:
    """The layout's name, whether drafts are coarse, and whether weights may be short."""
    return LAYOUT.decode() + "/coarse-drafts" * coarse_drafts + "/short" * short


def nbytes_of(library: Library, linear: NativeLinear) -> int:
    """Size of a product's panels."""
    return library.packed_bytes(linear.out_features, linear.in_features, linear.groups, Form(linear.form))


def product_sizes(shape: Sequence[int], form: Form) -> NativeLinear:
    """A product of this form without weights; `shape` as of `StoredProduct`."""
    groups, out_features, in_features = (1, *shape) if len(shape) == 2 else (shape[0], shape[2], shape[1])
    return NativeLinear(out_features, in_features, groups, form)


def open_panels(
    library: Library, memory: memoryview, layout: bytes, dtype: str, shape: Sequence[int]
) -> tuple[NativeLinear, memoryview]:
    """A product's sizes and form, and its panels in stored bytes.

    Args:
        dtype: of the dense weight, as torch names it. shape: of it, as of `StoredProduct`.
    Raises: ModelError if the bytes are not panels of this layout.
    """
    form = planned = STORED_FORMS.get(dtype)
    panels = memory
    if layout == EITHER_LAYOUT and planned == Form.BF16 and memory.nbytes > HEAD_BYTES:
        form = Form.BF16_SHORT if memory[0] == Form.BF16_SHORT else Form.BF16
        panels = memory[HEAD_BYTES:]
    elif layout == W8A16_LAYOUT and planned == Form.INT8:
        form = planned = Form.W8A16
    elif layout != LAYOUT:
        planned = None
    if form is None or planned is None or panels.nbytes != nbytes_of(library, product_sizes(shape, planned)):
        raise ModelError(f"{memory.nbytes} bytes of layout {layout!r} are not panels of {tuple(shape)}")
    linear = product_sizes(shape, form)
    return linear, panels[: nbytes_of(library, linear)]


def short_weights_pay(library: Library, folder: Path) -> bool:
    """Whether they are faster, for this model.

    A server's last-level cache may be as large as the model and still be no faster than memory, because the other cores
    share it. With AMX, models that fit in it gain like others (230 M parameters in 480 MiB: 1.33 at batch 1), or lose
    nothing (10 M). On Zen 5 the latter lost 8 %.

    Raises: ModelError if a file of the folder cannot be read.
    """
    if not library.short_weights_pay:
        return False
    try:
        return library.instructions == "amx" or weight_bytes(folder, _BF16_BYTES) > last_level_cache_bytes()
    except (OSError, SafetensorError) as error:
        raise ModelError(f"a file of {folder} cannot be read ({error}): fetch it again") from error


# Size of the processor's last-level cache.

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20}


def last_level_cache_bytes(caches: Path = _CACHES) -> int:
    """Size of the cache closest to memory [bytes]; 0 if unknown.

    Args:
        caches: Linux's description of the first core's caches.
    """
    found = []
    for folder in caches.glob("index*"):
        with suppress(OSError, ValueError, KeyError):
            size = (folder / "size").read_text().strip()
            found.append((int((folder / "level").read_text()), int(size[:-1]) * _UNITS[size[-1]]))
    return max(found)[1] if found else 0
