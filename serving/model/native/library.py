"""Python binding of the native library: finds or builds it, checks it, and types its functions.

Its availability is decided once per process. Without it torch computes everything, only slower, so a missing library is
not an error; the log reports the reason once.
"""

import ctypes
import logging
from functools import cache
from pathlib import Path

import numpy as np

from serving.errors import ModelError
from serving.model.native.build import BuildError, cached_library, packaged_library
from serving.model.native.layout import INTERFACE, SIZES, Form, NativeFailure, NativeLinear

logger = logging.getLogger(__name__)

_Int = ctypes.c_int32
_Address = ctypes.c_void_p


class Library:
    """One loaded library.

    Args:
        path: the shared library.
    Raises: ModelError if it cannot be loaded, or was built from other sources than this package's.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.functions = ctypes.CDLL(str(path))
            _declare(self.functions)
        except (OSError, AttributeError) as error:
            raise ModelError(f"the native library {path} cannot be loaded ({error})") from error
        found = self.functions.cm_interface()
        sizes = {name: self.functions.cm_size_of(name.encode()) for name in SIZES}
        if found != INTERFACE or sizes != SIZES:
            raise ModelError(
                f"the native library {path} has interface {found}, but {INTERFACE} is needed: build it again"
            )
        self.path = path

    @property
    def instructions(self) -> str:
        """Instruction set that the kernels use here: amx, avx512, avx2 or portable."""
        return str(self.functions.cm_instructions().decode())

    @property
    def short_weights_pay(self) -> bool:
        """Whether bfloat16 weights in twelve bits are faster here than in sixteen: with AMX, and on AMD's Zen 5."""
        return bool(self.functions.cm_short_weights_pay())

    def use_instructions(self, name: str) -> None:
        """Compute with another instruction set from now on; for tests.

        Raises: ModelError if it is not available on this machine.
        """
        self.check(self.functions.cm_use_instructions(name.encode()))

    def packed_bytes(self, out_features: int, in_features: int, groups: int, form: Form) -> int:
        """Memory of a packed product [bytes]."""
        return int(self.functions.cm_packed_bytes(out_features, in_features, groups, form))

    def pack(self, weight: int, scale: int | None, linear: NativeLinear, packed: int) -> bool:
        """Write the packed form of a dense weight. Returns: False if `linear` requests a short form that the weight
        does not have.

        Args:
            weight: address of `[groups * out_features, in_features]`.
            scale: address of `[groups * out_features] float32`, INT8 only.
            linear: its sizes and form.
            packed: address of `packed_bytes` bytes, a multiple of 64.
        Raises: ModelError if the sizes are invalid.
        Effects: writes the memory at `packed`.
        """
        sizes = linear.out_features, linear.in_features, linear.groups, linear.form
        result = self.functions.cm_pack(weight, scale, *sizes, packed)
        if result == NativeFailure.NO_SHORT_FORM:
            return False
        self.check(result)
        return True

    def apply(self, linear: NativeLinear, x: int, rows: int, form: Form, y: int, threads: int) -> None:
        """One product.

        Args:
            x: address of `[rows, groups * in_features]`, dense, F32 or BF16.
            y: address of `[rows, groups * out_features]`, of the same form.
        Raises: ModelError if the sizes are invalid or memory is short.
        Effects: writes the memory at `y`.
        """
        self.check(self.functions.cm_apply(ctypes.byref(linear), x, rows, form, y, threads))

    def check(self, result: int) -> None:
        """Raises: ModelError with the library's message if a function did not return 0."""
        if result:
            raise ModelError(self.functions.cm_error_text().decode(errors="replace"))


@cache
def load() -> Library | None:
    """The library of this process; None = not available; the log has the reason.

    Effects: the first call may compile it into the user's cache folder, which takes about half a minute.
    """
    packaged = packaged_library()
    try:
        return trusted(Library(packaged if packaged.exists() else cached_library(logger.warning)))
    except (BuildError, ModelError) as error:
        logger.warning("no native step (%s); torch computes instead, slower", error)
        return None


def trusted(library: Library) -> Library:
    """The library, switched to vector kernels if its tile kernels fail their self-test; logs the switch."""
    if library.instructions == "amx" and not tiles_agree(library.functions):
        logger.warning("products on AMX tiles are not those of AVX-512 here: computing without them; please report it")
        library.use_instructions("avx512")
    return library


def instructions() -> str | None:
    """Instruction set of the library; None = no library. Effects: as `load`."""
    library = load()
    return None if library is None else library.instructions


def _declare(functions: ctypes.CDLL) -> None:
    """Argument and result types: without them, addresses are cut to 32 bits."""
    signatures: dict[str, tuple[type | None, list[type]]] = {
        "cm_interface": (_Int, []),
        "cm_size_of": (ctypes.c_int64, [ctypes.c_char_p]),
        "cm_instructions": (ctypes.c_char_p, []),
        "cm_short_weights_pay": (_Int, []),
        "cm_use_instructions": (_Int, [ctypes.c_char_p]),
        "cm_error_text": (ctypes.c_char_p, []),
        "cm_packed_bytes": (ctypes.c_int64, [_Int] * 4),
        "cm_pack": (_Int, [_Address, _Address, *[_Int] * 4, _Address]),
        "cm_engine_new": (_Int, [_Address, _Address, _Int, _Int, _Int, ctypes.POINTER(_Address)]),
        "cm_engine_free": (None, [_Address]),
        "cm_engine_use_grammars": (None, [_Address, _Address]),
        "cm_text_tokens_new": (_Address, [_Address]),
        "cm_text_tokens_free": (None, [_Address]),
        "cm_step": (_Int, [_Address, _Address, _Address]),
        "cm_window_shape_of": (_Int, [_Address, _Int, _Int, _Address]),
        "cm_window_bytes": (ctypes.c_int64, [_Address]),
        "cm_window_format": (_Int, [_Address, _Address, _Int, _Int, ctypes.c_uint64, ctypes.c_uint64]),
        "cm_window_raise": (None, [_Address, ctypes.c_uint64, ctypes.c_uint64]),
        "cm_experts_new": (_Int, [_Address, _Int, _Int, ctypes.POINTER(_Address)]),
        "cm_group_join": (_Int, [_Address, _Address]),
        "cm_group_serve": (_Int, [_Address, ctypes.c_int64]),
        "cm_group_use_micro_batches": (None, [_Address, _Int]),
        "cm_group_wake": (None, [_Address]),
        "cm_group_set_map": (_Int, [_Address, ctypes.c_uint64, _Address, ctypes.c_uint64]),
        "cm_group_set_peer": (_Int, [_Address, _Int, _Address, _Int]),
        "cm_group_admit": (_Int, [_Address, _Int, _Address]),
        "cm_group_drop": (_Int, [_Address, _Int]),
        "cm_group_settled": (_Int, [_Address]),
        "cm_group_epoch": (ctypes.c_uint64, [_Address]),
        "cm_group_masked": (ctypes.c_int32, [_Address]),
        "cm_group_map_version": (ctypes.c_uint64, [_Address]),
        "cm_group_counts": (None, [_Address, _Address]),
        "cm_group_usage": (ctypes.c_int64, [_Address, _Address]),
        "cm_group_work": (None, [_Address, _Address]),
        "cm_group_sessions": (None, [_Address, _Address]),
        "cm_group_awaits": (_Int, [_Address, ctypes.POINTER(ctypes.c_int64)]),
        "cm_carrier_open": (_Int, [_Address, _Address, ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(_Address)]),
        "cm_carrier_start": (_Int, [_Address, _Int]),
        "cm_carrier_lose": (None, [_Address, ctypes.c_char_p]),
        "cm_carrier_lost": (ctypes.c_size_t, [_Address, ctypes.c_char_p, ctypes.c_size_t]),
        "cm_carrier_sent_bytes": (ctypes.c_uint64, [_Address]),
        "cm_carrier_close": (None, [_Address]),
        "cm_apply": (_Int, [_Address, _Address, _Int, _Int, _Address, _Int]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments


# Tests matrix tiles before they are used: compares the same products with and without them.
#
# The AMX kernels were written and tested on a software model of the tiles. On a processor with real tiles, two small
# products cost less than a millisecond, once per process, and a wrong token would cost more.

_OUT, _IN, _ROWS = 96, 160, 21
_TOLERANCE = 0.02
"""Relative to the largest value: bfloat16 products summed in another order, then rounded."""


def tiles_agree(library: ctypes.CDLL) -> bool:
    """Whether products on tiles equal those of the portable kernels; the tiles are in use afterwards.

    Args:
        library: the functions, their types declared.
    """
    rng = np.random.default_rng(0)
    floats = (rng.standard_normal((_OUT, _IN), np.float32).view(np.uint32) >> 16).astype(np.uint16)
    bytes_ = rng.integers(-127, 128, (_OUT, _IN), np.int8)
    x = (rng.standard_normal((_ROWS, _IN), np.float32).view(np.uint32) >> 16).astype(np.uint16)
    scale = rng.random(_OUT, np.float32)
    for form, weight in ((Form.BF16, floats), (Form.INT8, bytes_)):
        plain = _product(library, b"portable", form, weight, scale, x)
        tiles = _product(library, b"amx", form, weight, scale, x)
        error = float(np.abs(tiles - plain).max())
        if not error <= (_TOLERANCE if form is Form.BF16 else 0.0) * float(np.abs(plain).max()):
            return False
    return True


def _product(
    library: ctypes.CDLL, name: bytes, form: Form, weight: np.ndarray, scale: np.ndarray, x: np.ndarray
) -> np.ndarray:
    """`[rows, out] float32`; NaN everywhere if the library declines."""
    packed = np.zeros(library.cm_packed_bytes(_OUT, _IN, 1, form) + 64, np.uint8)
    start = packed.ctypes.data + -packed.ctypes.data % 64
    y = np.zeros((_ROWS, _OUT), np.uint16)
    linear = NativeLinear(out_features=_OUT, in_features=_IN, groups=1, form=form, packed=start, bias=None)
    given = scale.ctypes.data if form is Form.INT8 else None
    failed = (
        library.cm_use_instructions(name)
        or library.cm_pack(weight.ctypes.data, given, _OUT, _IN, 1, form, start)
        or library.cm_apply(ctypes.byref(linear), x.ctypes.data, _ROWS, Form.BF16, y.ctypes.data, 1)
    )
    if failed:
        return np.full((_ROWS, _OUT), np.nan, np.float32)
    return (y.astype(np.uint32) << 16).view(np.float32)
