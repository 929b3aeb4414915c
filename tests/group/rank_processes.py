"""Groups of ranks as processes that can be killed at a point of the protocol, or at any moment.

The parent is the shell: it creates the group, and when a rank dies it gives the others a map without it and raises the
epoch. Every rank has all experts in its slots, so no expert has to be loaded.
"""

import contextlib
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from serving.group.compute.group_rank import RankWindow
from serving.ids import SequenceId
from serving.instance.core.settings import EngineSettings
from serving.instance.executors.group_executor import NativeGroupExecutor
from serving.instance.executors.native_grammar import route_for_steps
from serving.model.kv_cache import KvCache
from serving.model.loader import DtypeName, load_model
from serving.model.native import build, library
from serving.model.native.layout import MAP_POSITIONS
from serving.model.native.rank_group import GroupPlace
from serving.values.sequence import SequenceSpec
from tests.group.rank_threads import BLOCK_TOKENS, BLOCKS, SETTINGS, Answer, drive, expert_layers, mapped_slots
from tests.instance.native_grammars import matchers_of

FAULTS = Path(__file__).parent / "native" / "fault_points.cpp"
LIMIT_S = 60.0
IDLE_S = 1.0

Answers = dict[SequenceId, Answer]


def library_with_faults(folder: Path) -> Path:
    """The native library, built so that a rank can die at a point of the exchange; cached for these sources.

    It has portable kernels only, which compile quickly; their bits differ from this machine's usual ones.
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
    """Arguments of one rank's process.

    Args:
        window: path of its window.
        ranks: of the group; 0 = none, it computes alone.
        library: the one with faults; None = as usual.
        die_at: point of the exchange and number of passes before it, `wait:3`; empty = none.
        slow_at: point of the exchange and duration of each pass [µs], `gather:100`; empty = none.
        facts: file for its counters at the end.
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
    slow_at: str = ""
    facts: Path | None = None


def all_maps(layers: int, experts: int, members: Sequence[int], seed: int) -> NDArray[np.uint32]:
    """A map that uses these ranks; slot = layer * experts + expert on each."""
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
    """Main function of the child."""
    if order.library is not None:
        library.__dict__["packaged_library"] = lambda: order.library
        os.environ |= {"CM_DIE_AT": order.die_at, "CM_SLOW_AT": order.slow_at}
    model = load_model(order.folder, dtype=order.dtype, native=True, coarse_drafts=order.settings.speculation)
    layers = len(model.config.layers) + order.settings.speculation
    cache = KvCache(model.config, BLOCKS, BLOCK_TOKENS, model.dtype, num_layers=layers)
    executor = NativeGroupExecutor(
        model,
        cache,
        threads=1,
        max_rows=order.settings.max_step_tokens,
        matchers=matchers_of(order.folder, route_for_steps()),
        most_forced=order.settings.forced_tokens,
    )
    if order.ranks == 0:
        pipe.send(drive(executor, order.work, order.settings))
        return
    executor.use_micro_batches(2 - order.rank % 2)
    with RankWindow.create(order.window, executor.group.window_shape(order.ranks), order.rank) as own:
        pipe.send((os.getpid(), len(expert_layers(model)), model.config.expert_count))
        windows, processes, table, version = pipe.recv()
        contents = list(itertools.product(range(table.shape[0]), range(table.shape[2])))
        peers = [own if rank == order.rank else RankWindow.attach(path) for rank, path in enumerate(windows)]
        slots = mapped_slots(model, contents)
        executor.group.join(
            GroupPlace(order.rank, [peer.memory for peer in peers], processes, slots, table, version, 2, LIMIT_S)
        )
        _compute(pipe, order, executor)


def _compute(pipe: Connection, order: Order, executor: NativeGroupExecutor) -> None:
    over, told = threading.Event(), threading.Event()
    sending = threading.Lock()
    answers: Answers = {}
    kept: list[RankWindow] = []

    def listen() -> None:
        while True:
            try:
                message = pipe.recv()
            except EOFError:
                os._exit(1)
            if message is None:
                over.set()
                return executor.wake()
            version, table, epoch, newcomer = message
            if newcomer is not None:
                rank, path, process = newcomer
                kept.append(RankWindow.attach(path))
                executor.group.set_peer(rank, kept[-1].memory, process)
            executor.group.set_map(version, table, epoch)
            with sending:
                pipe.send(None)

    def idle() -> bool:
        if not told.is_set():
            told.set()
            if order.facts is not None:
                order.facts.write_bytes(msgspec.msgpack.encode(executor.group.exchanged()))
            with sending:
                pipe.send(answers)
        executor.serve(IDLE_S)
        return not over.is_set()

    threading.Thread(target=listen, daemon=True).start()
    drive(executor, order.work, order.settings, idle, answers=answers)


class RankProcesses:
    """A group; a context manager that ends it.

    Args:
        orders: arguments of the ranks, by number.
        seed: of the routing of rows.
        replacements: by rank, arguments of the processes that replace dead ones.
    """

    def __init__(self, orders: Sequence[Order], seed: int = 0, replacements: Mapping[int, Order] | None = None) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.group.rank_processes"])
        self._seed, self._replacements = seed, dict(replacements or {})
        self._epoch = 1
        self._windows: dict[int, RankWindow] = {}
        self._paths: dict[int, Path] = {}
        self._pids: dict[int, int] = {}
        self._members: list[int] = []
        self._pipes: dict[int, Connection] = {}
        self.processes: dict[int, Any] = {}
        """Processes by rank; of one that was replaced, the new one."""
        self.dead: list[Any] = []
        for order in orders:
            self._start(order)

    def alone(self) -> Answers:
        """Results of a single rank without a group."""
        found: Answers = _receive(self._pipes[0])
        return found

    def form(self) -> None:
        """Make all ranks join."""
        for rank in self._pipes:
            self._take_offer(rank)
        self._members = sorted(self._pipes)
        for rank in self._members:
            self._send_place(rank)

    def run(self) -> tuple[dict[int, Answers], float]:
        """Run until all living ranks have responded; dead ones are removed from the group, and maybe replaced.

        Returns: results by rank; and the time at which the first death was seen, by `time.monotonic`.
        """
        answers: dict[int, Answers] = {}
        seen_at = 0.0
        deadline = time.monotonic() + LIMIT_S
        while waiting := {rank for rank in self._pipes if rank not in answers}:
            assert time.monotonic() < deadline, f"ranks {sorted(waiting)} did not answer in time"
            sentinels = {self.processes[rank].sentinel: rank for rank in self._pipes}
            pipes: dict[Any, int] = {self._pipes[rank]: rank for rank in waiting}
            ready = wait([*sentinels, *pipes], timeout=1.0)
            dead = {sentinels[one] for one in ready if one in sentinels}
            if dead:
                seen_at = seen_at or time.monotonic()
                self._put_out(dead, answers)
                continue
            for rank in (pipes[one] for one in ready):
                with contextlib.suppress(EOFError):  # dead: the next poll sees it
                    if rank in self._members:
                        answers[rank] = _receive(self._pipes[rank])
                    else:
                        self._take_in(rank, answers)
        return answers, seen_at

    def _start(self, order: Order) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=rank_main, args=(theirs, order), daemon=True)
        process.start()
        theirs.close()
        self._pipes[order.rank], self.processes[order.rank] = ours, process
        self._paths[order.rank] = order.window

    def _take_offer(self, rank: int) -> None:
        self._pids[rank], self._layers, self._experts = _receive(self._pipes[rank])
        self._windows[rank] = RankWindow.attach(self._paths[rank])

    def _send_place(self, rank: int) -> None:
        paths = [self._paths[one] for one in sorted(self._paths)]
        self._pipes[rank].send((paths, [self._pids[one] for one in sorted(self._pids)], self._table(), self._epoch))

    def _table(self) -> NDArray[np.uint32]:
        """The map of this epoch, which is its version."""
        return all_maps(self._layers, self._experts, self._members, self._seed + self._epoch)

    def _put_out(self, dead: set[int], answers: dict[int, Answers]) -> None:
        for rank in dead:
            self.dead.append(self.processes[rank])
            self._pipes.pop(rank).close()
            answers.pop(rank, None)
        self._members = [rank for rank in self._members if rank not in dead]
        self._begin_epoch(answers, None)
        for rank in dead & self._replacements.keys():
            self._start(self._replacements.pop(rank))

    def _take_in(self, rank: int, answers: dict[int, Answers]) -> None:
        """Register a replacement: it joins at the next epoch."""
        self._take_offer(rank)
        self._members = sorted((*self._members, rank))
        self._begin_epoch(answers, rank)

    def _begin_epoch(self, answers: dict[int, Answers], newcomer: int | None) -> None:
        self._epoch += 1
        who = None if newcomer is None else (newcomer, self._paths[newcomer], self._pids[newcomer])
        table = self._table()
        for rank in self._members:
            if rank == newcomer:
                self._send_place(rank)
            else:
                self._pipes[rank].send((self._epoch, table, self._epoch, who))
        for rank in self._members:  # a response may be on its way before the map's
            while rank != newcomer and (message := _receive(self._pipes[rank])) is not None:
                answers[rank] = message
        for rank in self._members:
            self._windows[rank].raise_epoch(self._epoch, sum(1 << member for member in self._members))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for rank, pipe in self._pipes.items():
            if error is None and self.processes[rank].is_alive():
                with contextlib.suppress(OSError):
                    pipe.send(None)
        for process in self.processes.values():
            process.join(5.0 if error is None else 0.0)
            process.kill()
            process.join()
        for window in self._windows.values():
            window.close()


def _receive(pipe: Connection) -> Any:
    assert pipe.poll(LIMIT_S), "a rank does not answer"
    return pipe.recv()
