"""Groups of ranks as processes, which can be killed: at a place of the protocol, or at any moment.

The parent is the shell: it makes the group, and when a rank dies it gives the others a map without it and raises the
epoch. Every rank has all experts in its slots, so that nothing is to be loaded.
"""

import contextlib
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from serving.ids import SequenceId
from serving.instance.core.settings import EngineSettings
from serving.instance.executors.group_executor import NativeGroupExecutor
from serving.instance.live.rank_window import RankWindow
from serving.model.kv_cache import KvCache
from serving.model.loader import DtypeName, load_model
from serving.model.native import build, library
from serving.model.native.layout import MAP_POSITIONS
from serving.model.native.rank_group import GroupPlace
from serving.values.sequence import SequenceSpec
from tests.instance.rank_threads import BLOCK_TOKENS, BLOCKS, SETTINGS, Answer, drive, expert_layers, mapped_slots

FAULTS = Path(__file__).parent / "native" / "fault_points.cpp"
LIMIT_S = 60.0
IDLE_S = 1.0

Answers = dict[SequenceId, Answer]


def library_with_faults(folder: Path) -> Path:
    """The native library, built so that a rank can die at a place of the exchange; kept for these sources.

    With portable kernels alone, which are quickly compiled; their bits are others than this machine's usual ones.
    """
    path = folder / f"faults-{build.source_fingerprint()}-{FAULTS.stat().st_mtime_ns}.so"
    with build.lock(folder / "faults.lock"):
        if not path.exists():
            flags = (
                "-shared",
                "-O1",
                "-DCM_EXCHANGE_POINT(place)=cm_pass(place)",
                "-include",
                str(FAULTS.with_suffix(".h")),
            )
            build.build(path, build.find_compiler(), [*build.library_sources(), FAULTS], flags, {})
            build.forget_old(path, "faults-*.so", kept=4)
    return path


@dataclass(frozen=True)
class Order:
    """What a rank is to be.

    Args:
        window: path of its window.
        ranks: of the group; 0 = none, it computes all alone.
        library: the one with faults; None = as usual.
        die_at: place of the exchange and how often it is passed before, `wait:3`; empty = nowhere.
    """

    folder: Path
    dtype: DtypeName
    rank: int
    ranks: int
    window: Path
    work: tuple[SequenceSpec, ...]
    settings: EngineSettings = SETTINGS
    library: Path | None = None
    die_at: str = ""


def all_maps(layers: int, experts: int, members: Sequence[int], seed: int) -> NDArray[np.uint32]:
    """A map that uses these ranks; slot = layer * experts + expert everywhere."""
    rng = Random(seed)
    table = [
        [
            [rng.choice(members) << 16 | layer * experts + expert for expert in range(experts)]
            for _ in range(MAP_POSITIONS)
        ]
        for layer in range(layers)
    ]
    return np.array(table, np.uint32)


def rank_main(pipe: Connection, order: Order) -> None:
    """The child."""
    if order.library is not None:
        library.__dict__["packaged_library"] = lambda: order.library
        os.environ["CM_DIE_AT"] = order.die_at
    model = load_model(order.folder, dtype=order.dtype, native=True, coarse_drafts=order.settings.speculation)
    layers = model.config.num_hidden_layers + order.settings.speculation
    cache = KvCache(model.config, BLOCKS, BLOCK_TOKENS, model.dtype, num_layers=layers)
    executor = NativeGroupExecutor(model, cache, threads=1, max_rows=order.settings.max_step_tokens)
    if order.ranks == 0:
        pipe.send(drive(executor, order.work, order.settings))
        return
    with RankWindow.create(order.window, executor.window_shape(order.ranks), order.rank) as own:
        pipe.send((os.getpid(), len(expert_layers(model)), model.config.n_routed_experts))
        windows, processes, table = pipe.recv()
        contents = list(itertools.product(range(table.shape[0]), range(table.shape[2])))
        peers = [own if rank == order.rank else RankWindow.attach(path) for rank, path in enumerate(windows)]
        slots = mapped_slots(model, contents)
        executor.join(
            GroupPlace(
                order.rank, [peer.memory for peer in peers], processes, slots, table, cores=2, deadline_s=LIMIT_S
            )
        )
        _compute(pipe, order, executor)


def _compute(pipe: Connection, order: Order, executor: NativeGroupExecutor) -> None:
    over, told = threading.Event(), threading.Event()
    sending = threading.Lock()
    answers: Answers = {}

    def listen() -> None:
        while True:
            try:
                message = pipe.recv()
            except EOFError:
                os._exit(1)
            if message is None:
                over.set()
                return executor.wake()
            executor.set_map(*message)
            with sending:
                pipe.send(None)

    def idle() -> bool:
        if not told.is_set():
            told.set()
            with sending:
                pipe.send(answers)
        executor.serve(IDLE_S)
        return not over.is_set()

    threading.Thread(target=listen, daemon=True).start()
    drive(executor, order.work, order.settings, idle, answers=answers)


class RankProcesses:
    """A group; a context manager that ends it."""

    def __init__(self, orders: Sequence[Order], seed: int = 0) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.instance.rank_processes"])
        self._orders, self._seed = orders, seed
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        for order in orders:
            ours, theirs = context.Pipe()
            process = context.Process(target=rank_main, args=(theirs, order), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def alone(self) -> Answers:
        """What the only rank answers, which has no group."""
        (pipe,) = self._pipes
        found: Answers = _receive(pipe)
        return found

    def form(self) -> None:
        """Have all join."""
        found = [_receive(pipe) for pipe in self._pipes]
        self._layers, self._experts = found[0][1:]
        self._members = list(range(len(found)))
        table = all_maps(self._layers, self._experts, self._members, self._seed)
        for pipe in self._pipes:
            pipe.send(([order.window for order in self._orders], [pid for pid, *_ in found], table))
        self._windows = [RankWindow.attach(order.window) for order in self._orders]

    def run(self) -> tuple[list[Answers | None], float]:
        """Until all who live have answered; whoever dies is put out of the group.

        Returns: answers by rank, None of the dead; and when the first death was seen, by `time.monotonic`.
        """
        answers: list[Answers | None] = [None] * len(self._pipes)
        epoch, seen_at = 1, 0.0
        deadline = time.monotonic() + LIMIT_S
        open_ones = {rank for rank in self._members}
        while open_ones:
            assert time.monotonic() < deadline, f"ranks {sorted(open_ones)} did not answer in time"
            sources: dict[Any, int] = {self._pipes[rank]: rank for rank in open_ones}
            sources |= {self.processes[rank].sentinel: rank for rank in self._members}
            ready = wait(list(sources), timeout=1.0)
            dead = {sources[one] for one in ready if one in {self.processes[r].sentinel for r in self._members}}
            if dead:
                seen_at = seen_at or time.monotonic()
                open_ones -= dead
                epoch += 1
                self._put_out(dead, epoch, answers, open_ones)
                continue
            for one in ready:
                rank = sources[one]
                with contextlib.suppress(EOFError):  # dead: the next look sees it
                    answers[rank] = _receive(self._pipes[rank])
                    open_ones.discard(rank)
        return answers, seen_at

    def _put_out(self, dead: set[int], epoch: int, answers: list[Answers | None], open_ones: set[int]) -> None:
        self._members = [rank for rank in self._members if rank not in dead]
        table = all_maps(self._layers, self._experts, self._members, self._seed + epoch)
        for rank in self._members:
            self._pipes[rank].send((epoch, table))
        for rank in self._members:  # an answer may be on its way before the map's
            while (message := _receive(self._pipes[rank])) is not None:
                answers[rank] = message
                open_ones.discard(rank)
        for rank in self._members:
            self._windows[rank].raise_epoch(epoch, sum(1 << member for member in self._members))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for pipe, process in zip(self._pipes, self.processes, strict=True):
            if error is None and process.is_alive():
                with contextlib.suppress(OSError):
                    pipe.send(None)
        for process in self.processes:
            process.join(5.0 if error is None else 0.0)
            process.kill()
            process.join()
        for window in getattr(self, "_windows", []):
            window.close()


def _receive(pipe: Connection) -> Any:
    assert pipe.poll(LIMIT_S), "a rank does not answer"
    return pipe.recv()
