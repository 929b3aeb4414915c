"""A group of threads that grows and shrinks under load: the work of a shell and its ranks, without either."""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from serving.errors import GroupError
from serving.group.compute.group_rank import LAST_EPOCH
from serving.ids import SequenceId
from serving.instance.executors.group_executor import NativeGroupExecutor
from serving.model.kv_cache import KvCache
from serving.model.loader import DtypeName, load_model
from serving.model.native.layout import MAP_POSITIONS
from serving.model.native.library import load
from serving.model.native.rank_group import FIRST_EPOCH, GroupPlace, format_window, raise_epoch, window_bytes
from serving.values.sequence import SequenceSpec
from tests.group.rank_threads import (
    BLOCK_TOKENS,
    BLOCKS,
    IDLE_S,
    SETTINGS,
    Answer,
    drive,
    expert_layers,
    mapped_slots,
    window_memory,
)

LIMIT_S = 60.0


class ResizedThreads:
    """Ranks of one checkpoint, each with all experts in its slots; any number of them may compute together.

    Args:
        most: ranks that the windows have space for.
    """

    def __init__(self, folder: Path, dtype: DtypeName, most: int, seed: int) -> None:
        self._rng = Random(seed)
        self.model = load_model(folder, dtype=dtype, native=True)
        self._layers, self._experts = len(expert_layers(self.model)), self.model.config.expert_count
        library = load()
        assert library is not None
        self._library, self._most = library, most
        self.executors: dict[int, NativeGroupExecutor] = {}
        self.windows: dict[int, memoryview] = {}
        self.members: list[int] = []
        self.epoch = 0
        self.answers: list[dict[SequenceId, Answer]] = [{} for _ in range(most)]
        self._ends = [threading.Event() for _ in range(most)]
        self._drained = [threading.Event() for _ in range(most)]
        self._threads: dict[int, threading.Thread] = {}
        self.failures: list[BaseException] = []

    def alone(self, specs: Sequence[SequenceSpec]) -> dict[SequenceId, Answer]:
        """Results of one process with all experts."""
        return drive(self._executor(), specs, SETTINGS)

    def grow(self, work: Mapping[int, Sequence[SequenceSpec]]) -> None:
        """Add ranks, each with its own requests, while the others continue."""
        old, self.members = self.members, sorted((*self.members, *work))
        self.epoch += 1
        table = self._table()
        for rank in work:
            self._make(rank)
        for rank in old:
            for newcomer in work:
                self.executors[rank].group.set_peer(newcomer, self.windows[newcomer], os.getpid())
            self.executors[rank].group.set_map(self.epoch, table, self.epoch)
        for rank in work:
            self._join(rank, table)
        for rank in work:
            self._threads[rank] = threading.Thread(target=self._run, args=(rank, work[rank]))
            self._threads[rank].start()
        self._begin((*work, *old))

    def shrink(self, leaving: Sequence[int]) -> None:
        """Remove ranks that have no more requests; they end before the epoch without them starts."""
        for rank in leaving:
            assert self._drained[rank].wait(LIMIT_S), "it drains in time"
        self.members = [rank for rank in self.members if rank not in leaving]
        self.epoch += 1
        table = self._table()
        for rank in self.members:
            self.executors[rank].group.set_map(self.epoch, table, self.epoch)
        self._end(leaving)
        self._begin(self.members)

    def close(self) -> None:
        """Wait for all current ranks, and end them."""
        for rank in self.members:
            assert self._drained[rank].wait(LIMIT_S), "it ends in time"
        self._end(self.members)
        assert not self.failures, self.failures

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + LIMIT_S
        while not condition() and not self.failures:
            assert time.monotonic() < deadline, "in time"
            time.sleep(0.001)

    def tokens(self, rank: int) -> int:
        """Output tokens of a rank so far."""
        return sum(len(answer.tokens) for answer in list(self.answers[rank].values()))

    def _end(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._ends[rank].set()
            raise_epoch(self._library, self.windows[rank], LAST_EPOCH, 0)
        for rank in ranks:
            self._threads.pop(rank).join(LIMIT_S)
            self._ends[rank].clear()
            self._drained[rank].clear()

    def _begin(self, order: Sequence[int]) -> None:
        for rank in order:
            raise_epoch(self._library, self.windows[rank], self.epoch, self._mask())

    def _mask(self) -> int:
        return sum(1 << rank for rank in self.members)

    def _make(self, rank: int) -> None:
        """Create a rank, as if by another process than the previous owner of the number."""
        self.executors[rank] = executor = self._executor()
        shape = executor.group.window_shape(self._most)
        self.windows[rank] = window_memory(window_bytes(shape))
        format_window(self._library, self.windows[rank], shape, rank, (1 << self._most) - 1)

    def _join(self, rank: int, table: NDArray[np.uint32]) -> None:
        raise_epoch(self._library, self.windows[rank], FIRST_EPOCH, self._mask())
        windows = [self.windows[one] if one in self.members else None for one in range(self._most)]
        processes = [os.getpid() if one in self.members else 0 for one in range(self._most)]
        contents = list(itertools.product(range(self._layers), range(self._experts)))
        slots = mapped_slots(self.model, contents)
        self.executors[rank].group.join(GroupPlace(rank, windows, processes, slots, table, self.epoch, 2, LIMIT_S))

    def _run(self, rank: int, work: Sequence[SequenceSpec]) -> None:
        def idle() -> bool:
            self._drained[rank].set()
            with contextlib.suppress(GroupError):
                self.executors[rank].serve(IDLE_S)
            return not self._ends[rank].is_set()

        try:
            drive(self.executors[rank], work, SETTINGS, idle, answers=self.answers[rank])
        except BaseException as error:
            self.failures.append(error)
            self._drained[rank].set()

    def _table(self) -> NDArray[np.uint32]:
        """A table with any member for every expert."""
        table = [
            [[self._home(layer, expert) for expert in range(self._experts)] for _ in range(MAP_POSITIONS)]
            for layer in range(self._layers)
        ]
        return np.array(table, np.uint32)

    def _home(self, layer: int, expert: int) -> int:
        return self._rng.choice(self.members) << 16 | layer * self._experts + expert

    def _executor(self) -> NativeGroupExecutor:
        layers = len(self.model.config.layers) + SETTINGS.speculation
        cache = KvCache(self.model.config, BLOCKS, BLOCK_TOKENS, self.model.dtype, num_layers=layers)
        return NativeGroupExecutor(self.model, cache, threads=1, max_rows=SETTINGS.max_step_tokens)
