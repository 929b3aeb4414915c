"""A cm_engine in Python: the native library's threads and scratch memory for the steps of one instance."""

import ctypes
from collections.abc import Sequence

from serving.errors import EngineError, GroupError
from serving.instance.executors.native_batch import NativeAnswer, NativeBatch
from serving.model.kv_cache import KvCache
from serving.model.native.bind import BoundModel, bind_cache
from serving.model.native.layout import GrammarFunctions, NativeFailure
from serving.model.native.library import Library


class NativeEngine:
    """A cm_engine: the library's threads and scratch memory."""

    def __init__(
        self, library: Library, bound: BoundModel, cache: KvCache, threads: int, max_rows: int, context: int
    ) -> None:
        self._functions = library.functions
        self._kept = bound, cache
        self._address = ctypes.c_void_p()
        struct = bind_cache(cache)
        model, place = ctypes.byref(bound.struct), ctypes.byref(self._address)
        library.check(self._functions.cm_engine_new(model, ctypes.byref(struct), threads, max_rows, context, place))

    def __del__(self) -> None:
        self._functions.cm_engine_free(self._address)

    @property
    def address(self) -> ctypes.c_void_p:
        """Address of the cm_engine; valid while this object exists."""
        return self._address

    def use_grammars(self, functions: Sequence[int]) -> None:
        """Allow batches to have matchers from now on. Args: functions: addresses in the order of `GrammarFunctions`."""
        self._functions.cm_engine_use_grammars(self._address, ctypes.byref(GrammarFunctions(*functions)))

    def step(self, batch: NativeBatch, answer: NativeAnswer) -> None:
        """Compute one step; releases the GIL.

        Raises: EngineError with the library's message; GroupError if other ranks of a group caused it.
        Effects: fills the answer.
        """
        self.check(self._functions.cm_step(self._address, ctypes.byref(batch.struct), ctypes.byref(answer.struct)))

    def check(self, result: int) -> None:
        """Raises: EngineError or GroupError with the library's message if a function did not return 0."""
        if result:
            kind = GroupError if result == NativeFailure.GROUP else EngineError
            raise kind(self._functions.cm_error_text().decode(errors="replace"))
