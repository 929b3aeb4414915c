"""llguidance behind one small interface, so that masks may be made by its Python classes or by its C functions."""

import ctypes
import logging
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar, Protocol, Self

import llguidance
from llguidance import LLMatcher

from serving.errors import GrammarError
from serving.grammar.text import LIMITS
from serving.grammar.vocabulary import Vocabulary, guidance_tokenizer


class RawMatcher(Protocol):
    """A grammar and an output so far, as llguidance has it; its own classes fit. Errors are for good."""

    def deep_copy(self) -> Self:
        """Another one for the same output."""
        ...

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> object:
        """Write the tokens that may come next, a bit for each and one for the end."""
        ...

    def consume_token(self, sampled_token: int) -> bool:
        """Append a token to the output. Returns: False if the token is not allowed."""
        ...

    def compute_ff_tokens(self) -> Sequence[int]:
        """Tokens that must come next, as far as there is only one way on."""
        ...

    def is_error(self) -> bool:
        """Whether it has failed."""
        ...

    def get_error(self) -> str:
        """Why."""
        ...


Compile = Callable[[str], RawMatcher]
"""Makes a matcher of a grammar, as `guidance_text` writes it; one that `is_error` if it is none."""


class GuidanceRoute(Protocol):
    """A way to call llguidance.

    Attributes:
        step_functions: addresses of its C functions for `GrammarFunctions` of the native step, if its matchers have an
            `address` for them; else empty.
    """

    @property
    def step_functions(self) -> Sequence[int]: ...

    def __call__(self, vocabulary: Vocabulary) -> Compile:
        """Prepare a vocabulary; may take a second for a large one."""
        ...


class PythonRoute:
    """`GuidanceRoute` through llguidance's Python classes."""

    step_functions: Sequence[int] = ()

    def __call__(self, vocabulary: Vocabulary) -> Compile:
        tokenizer = guidance_tokenizer(vocabulary)
        return lambda text: LLMatcher(tokenizer, text, log_level=0, limits=LIMITS)


# llguidance through the C interface that its Python wheel exports: the same matchers, at addresses that native code
# can use. A wheel need not export it: `load` reports whether this one does.

logger = logging.getLogger(__name__)

_Address = ctypes.c_void_p
_Size = ctypes.c_size_t
_MESSAGE_BYTES = 300
"""Bytes of a complaint about a tokenizer."""
_SPARE = 128
"""Zeros behind a struct that has no size of its own: fields of later versions, which then have their defaults."""
_SPECIAL = b"\xff"
"""Prefix of the names of special tokens: no text has that byte."""
_STEP_FUNCTIONS = (
    "llg_matcher_compute_mask_into",
    "llg_matcher_consume_token",
    "llg_matcher_rollback",
    "llg_matcher_compute_ff_tokens",
    "llg_matcher_validate_tokens",
)
"""In the order of `GrammarFunctions`."""


class _Limits(ctypes.Structure):
    """LlgParserLimits."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        ("max_items_in_row", _Size),
        ("initial_lexer_fuel", ctypes.c_uint64),
        ("step_lexer_fuel", ctypes.c_uint64),
        ("step_max_items", _Size),
        ("max_lexer_states", _Size),
        ("max_grammar_size", _Size),
        ("precompute_large_lexemes", ctypes.c_bool),
        ("verbose_errors", ctypes.c_bool),
    ]


class _TokenizerInit(ctypes.Structure):
    """LlgTokenizerInitV2."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        ("struct_size", _Size),
        ("vocab_size", ctypes.c_uint32),
        ("tok_eos", ctypes.c_uint32),
        ("token_lens", _Address),
        ("token_bytes", ctypes.c_char_p),
        ("tokenizer_json", _Address),
        ("tokenize_assumes_string", ctypes.c_bool),
        ("tokenize_fn", _Address),
        ("use_approximate_greedy_tokenize_fn", ctypes.c_bool),
        ("tokenize_user_data", _Address),
        ("slices", _Address),
        ("tok_eos_extra", _Address),
        ("tok_eos_extra_count", ctypes.c_uint32),
    ]


class _MatcherInit(ctypes.Structure):
    """LlgConstraintInit."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        ("tokenizer", _Address),
        ("log_buffer_level", ctypes.c_uint32),
        ("log_stderr_level", ctypes.c_uint32),
        ("ff_tokens_ok", ctypes.c_bool),
        ("backtrack_ok", ctypes.c_bool),
        ("limits", _Limits),
        ("spare", ctypes.c_char * _SPARE),
    ]


class TextTokenizer(Protocol):
    """A C function that gives the tokens of a text, as llguidance calls it, from any thread.

    Attributes:
        function: its address; data: its first argument.
    """

    @property
    def function(self) -> int: ...

    @property
    def data(self) -> int: ...


class CRoute:
    """A `GuidanceRoute` through C functions.

    Args:
        functions: of `load`.
        tokenizer: makes a text's tokens of what gives them in Python.
    """

    def __init__(
        self, functions: ctypes.CDLL, tokenizer: Callable[[Callable[[str], Sequence[int]]], TextTokenizer]
    ) -> None:
        self._functions = functions
        self._tokenizer = tokenizer
        addresses = (ctypes.cast(getattr(functions, name), _Address).value for name in _STEP_FUNCTIONS)
        self.step_functions: Sequence[int] = tuple(address or 0 for address in addresses)

    def __call__(self, vocabulary: Vocabulary) -> Compile:
        """Implements `GuidanceRoute`. Raises: GrammarError if the library takes no such vocabulary."""
        return _CVocabulary(self._functions, vocabulary, self._tokenizer(vocabulary.canonical)).compile


class _CVocabulary:
    """An `LlgTokenizer` of the library, kept together with the Python tokenizer that it calls back."""

    def __init__(self, functions: ctypes.CDLL, vocabulary: Vocabulary, tokenizer: TextTokenizer) -> None:
        self.functions = functions
        self._tokenizer = tokenizer
        names = [_SPECIAL + own if i in vocabulary.no_text else own for i, own in enumerate(vocabulary.names)]
        lengths = array("I", map(len, names))
        init = _TokenizerInit(
            struct_size=ctypes.sizeof(_TokenizerInit),
            vocab_size=len(names),
            tok_eos=vocabulary.size,
            token_lens=lengths.buffer_info()[0],
            token_bytes=b"".join(names),
            tokenize_assumes_string=True,
            tokenize_fn=tokenizer.function,
            tokenize_user_data=tokenizer.data,
        )
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        self._address = functions.llg_new_tokenizer_v2(ctypes.byref(init), message, _MESSAGE_BYTES)
        if not self._address:
            raise GrammarError(f"llguidance takes no such vocabulary: {message.value.decode(errors='replace')}")
        self._init = _MatcherInit()
        functions.llg_constraint_init_set_defaults(ctypes.byref(self._init), self._address)
        self._init.log_buffer_level = self._init.log_stderr_level = 0
        for name, _ in _Limits._fields_:
            setattr(self._init.limits, name, getattr(LIMITS, name))

    def __del__(self) -> None:
        if getattr(self, "_address", None):
            self.functions.llg_free_tokenizer(self._address)

    def compile(self, text: str) -> "CMatcher":
        """Raises: GrammarError if a C string cannot hold it."""
        if "\0" in text:
            raise GrammarError("it has a character of number 0")
        made = self.functions.llg_new_matcher(ctypes.byref(self._init), b"llguidance", text.encode())
        return CMatcher(self, made)


class CMatcher:
    """A `RawMatcher` with an address.

    Args:
        vocabulary: kept as long as this.
        address: of an LlgMatcher; this object's own.
    """

    __slots__ = ("_functions", "_vocabulary", "address")

    def __init__(self, vocabulary: _CVocabulary, address: int) -> None:
        self._vocabulary = vocabulary
        self._functions = vocabulary.functions
        self.address = address

    def __del__(self) -> None:
        self._functions.llg_free_matcher(self.address)

    def deep_copy(self) -> "CMatcher":
        return CMatcher(self._vocabulary, self._functions.llg_clone_matcher(self.address))

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> None:
        self._functions.llg_matcher_compute_mask_into(self.address, trg_pointer, trg_byte_size)

    def consume_token(self, sampled_token: int) -> bool:
        return bool(self._functions.llg_matcher_consume_token(self.address, sampled_token) == 0)

    def compute_ff_tokens(self) -> list[int]:
        """Forced tokens, at most 64 of them."""
        found = (ctypes.c_uint32 * 64)()
        count = self._functions.llg_matcher_compute_ff_tokens(self.address, found, len(found))
        return list(found[: max(0, count)])

    def is_error(self) -> bool:
        return bool(self._functions.llg_matcher_is_error(self.address))

    def get_error(self) -> str:
        message = self._functions.llg_matcher_get_error(self.address)
        return message.decode(errors="replace") if message else ""


@cache
def load() -> ctypes.CDLL | None:
    """C functions of the installed llguidance; None = it exports none, which is logged once."""
    folder = Path(llguidance.__file__).parent
    try:
        (path,) = (path for path in folder.glob("_lib*") if path.suffix in (".so", ".dylib"))
        functions = ctypes.CDLL(str(path))
        _declare(functions)
        version = functions.llg_get_version().decode()
        if not version.startswith("llguidance@1."):
            raise ValueError(f"{version} may have another interface")
    except (OSError, AttributeError, ValueError) as error:
        logger.warning("llguidance has no C interface here (%s): masks of grammars are made outside of steps", error)
        return None
    return functions


def _declare(functions: ctypes.CDLL) -> None:
    """Argument and result types: without them, addresses are cut to 32 bits."""
    number = ctypes.c_int32
    signatures: dict[str, tuple[type | None, list[type]]] = {
        "llg_get_version": (ctypes.c_char_p, []),
        "llg_new_tokenizer_v2": (_Address, [_Address, _Address, _Size]),
        "llg_free_tokenizer": (None, [_Address]),
        "llg_constraint_init_set_defaults": (None, [_Address, _Address]),
        "llg_new_matcher": (_Address, [_Address, ctypes.c_char_p, ctypes.c_char_p]),
        "llg_clone_matcher": (_Address, [_Address]),
        "llg_free_matcher": (None, [_Address]),
        "llg_matcher_compute_mask_into": (number, [_Address, _Address, _Size]),
        "llg_matcher_consume_token": (number, [_Address, ctypes.c_uint32]),
        "llg_matcher_rollback": (number, [_Address, _Size]),
        "llg_matcher_compute_ff_tokens": (number, [_Address, _Address, _Size]),
        "llg_matcher_validate_tokens": (number, [_Address, _Address, _Size]),
        "llg_matcher_is_error": (ctypes.c_bool, [_Address]),
        "llg_matcher_get_error": (ctypes.c_char_p, [_Address]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
