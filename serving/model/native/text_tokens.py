"""Token ids of texts for native code, which caches them and requests each text once."""

import ctypes
from array import array
from collections.abc import Callable, Sequence

from serving.errors import ModelError
from serving.model.native.library import Library

_Address, _Size = ctypes.c_void_p, ctypes.c_size_t
_Ask = ctypes.CFUNCTYPE(_Size, _Address, _Address, _Size, _Address, _Size)


class TextTokens:
    """A cm_text_tokens with its `cm_tokenize` function.

    Args:
        encode: returns the tokens of a text; called from any thread.
    Attributes:
        function: address of cm_tokenize.
        data: its first argument; valid while this object exists.
    Raises: ModelError if there is no memory.
    """

    def __init__(self, library: Library, encode: Callable[[str], Sequence[int]]) -> None:
        def ask(_data: int, text: int, size: int, tokens: int, most: int) -> int:
            ids = encode(ctypes.string_at(text, size).decode(errors="replace"))
            if kept := array("I", ids[:most]):
                ctypes.memmove(tokens, kept.buffer_info()[0], len(kept) * kept.itemsize)
            return len(ids)

        self._functions = library.functions
        self._ask = _Ask(ask)
        self.function: int = ctypes.cast(self._functions.cm_tokenize, ctypes.c_void_p).value or 0
        self.data: int = self._functions.cm_text_tokens_new(self._ask) or 0
        if not self.data:
            raise ModelError("no memory for the tokens of texts")

    def __del__(self) -> None:
        self._functions.cm_text_tokens_free(self.data)
