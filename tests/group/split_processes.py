"""Attention ranks and expert ranks as processes, one of which is killed at a point of the exchange.

The parent is their shell: after the death of an expert rank it begins an epoch without it; when an attention rank dies,
another takes its number within the epoch.
"""

import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from serving.group.compute.group_rank import GroupRank
from serving.ids import SequenceId
from serving.model.native import library
from serving.values.group import RankOffer
from serving.values.sequence import SequenceSpec
from tests.group.rank_threads import Answer, drive
from tests.group.split_group import FIRST_EXPERT, Setting, order_from

LIMIT_S = 60.0
AGAIN = "again"
"""Message to an attention rank: compute the same requests again, with an empty cache."""
Answers = dict[SequenceId, Answer]


@dataclass(frozen=True)
class Child:
    """Arguments of one process. Args: die_at: point of the exchange and number of passes, `ask:3`; empty = none."""

    setting: Setting
    number: int
    shm: Path
    faults: Path
    birth: int = 0
    die_at: str = ""
    work: tuple[SequenceSpec, ...] = ()


def child_main(pipe: Connection, child: Child) -> None:
    """Main function of the child."""
    library.__dict__["packaged_library"] = lambda: child.faults
    os.environ["CM_DIE_AT"] = child.die_at
    rank: GroupRank
    if child.number >= FIRST_EXPERT:
        rank = expert = child.setting.expert_rank(child.number, child.shm, child.birth)
        expert.start()
    else:
        rank, executor = child.setting.attention_rank(child.number, child.shm, child.birth)
    pipe.send(rank.offer("x"))
    rank.follow(pipe.recv())
    steps: list[int] = []

    def compute() -> None:
        pipe.send((drive(executor, child.work, child.setting.settings, between=steps.append), len(steps)))

    if child.number < FIRST_EXPERT:
        threading.Thread(target=compute, daemon=True).start()
    while (message := pipe.recv()) is not None:
        if message == AGAIN:
            threading.Thread(target=compute, daemon=True).start()
        elif isinstance(message, tuple):
            rank.begin(*message)
        else:
            rank.follow(message)


def alone_main(pipe: Connection, child: Child) -> None:
    """Main function of a process with all experts."""
    library.__dict__["packaged_library"] = lambda: child.faults
    pipe.send(child.setting.alone(child.work))


class SplitProcesses:
    """A group; a context manager that ends it.

    Args:
        victim: rank that dies. die_at: as in `Child`.
        masks: whether experts of a dead expert rank are masked.
    """

    def __init__(
        self, setting: Setting, work: Mapping[int, tuple[SequenceSpec, ...]], shm: Path, faults: Path, victim: int,
        die_at: str, *, masks: bool = False,
    ) -> None:  # fmt: skip
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.group.split_processes"])
        self._setting, self._work, self._shm, self._faults = setting, work, shm, faults
        self._pipes: dict[int, Connection] = {}
        self._offers: dict[int, RankOffer] = {}
        self._processes: dict[int, Any] = {}
        self.epoch, self._version, self._masks = 1, 1, masks
        numbers = [*range(setting.attention), *range(FIRST_EXPERT, FIRST_EXPERT + setting.experts)]
        for number in numbers:
            self._start(number, die_at if number == victim else "")
        self._order(numbers)

    def alone(self) -> Answers:
        """Results of one process with all experts."""
        ours, theirs = self._context.Pipe()
        everything = tuple(spec for specs in self._work.values() for spec in specs)
        child = Child(self._setting, 0, self._shm, self._faults, work=everything)
        process = self._context.Process(target=alone_main, args=(theirs, child), daemon=True)
        process.start()
        found: Answers = _receive(ours)
        process.join()
        return found

    def run(self) -> tuple[Answers, dict[int, int]]:
        """Results of all attention ranks, also of one that took a dead one's number, and the steps of each."""
        answers: Answers = {}
        steps: dict[int, int] = {}
        deadline = time.monotonic() + LIMIT_S
        while steps.keys() != self._work.keys():
            assert time.monotonic() < deadline, f"ranks {self._work.keys() - steps.keys()} did not answer in time"
            sentinels = {process.sentinel: rank for rank, process in self._processes.items()}
            pipes: dict[Any, int] = {self._pipes[rank]: rank for rank in self._work.keys() - steps.keys()}
            ready = wait([*sentinels, *pipes], timeout=1.0)
            if dead := [sentinels[one] for one in ready if one in sentinels]:
                self._replace(dead[0])
                continue
            for rank in (pipes[one] for one in ready):
                with contextlib.suppress(EOFError):  # dead: the next look sees it
                    found, steps[rank] = self._pipes[rank].recv()
                    answers |= found
        return answers, steps

    def _start(self, number: int, die_at: str = "", birth: int = 0) -> None:
        ours, theirs = self._context.Pipe()
        work = self._work.get(number, ())
        child = Child(self._setting, number, self._shm, self._faults, birth, die_at, work)
        self._processes[number] = self._context.Process(target=child_main, args=(theirs, child), daemon=True)
        self._processes[number].start()
        theirs.close()
        self._pipes[number] = ours
        self._offers[number] = _receive(ours)

    def replace_expert_rank(self, number: int) -> None:
        """Start another process for a dead expert rank, and an epoch with it, when the results have arrived."""
        self._start(number, birth=1)
        self._masks = False
        self._begin_epoch()

    def run_again(self) -> Answers:
        """Results of all attention ranks for the same requests."""
        for rank in self._work:
            self._pipes[rank].send(AGAIN)
        return self.run()[0]

    def _order(self, ranks: Sequence[int]) -> None:
        order = order_from(list(self._offers.values()), self.epoch, self._version, masks=self._masks and self.epoch > 1)
        for rank in ranks:
            self._pipes[rank].send(order)

    def _replace(self, dead: int) -> None:
        self._processes.pop(dead).join()
        del self._pipes[dead], self._offers[dead]
        if dead < FIRST_EXPERT:
            self._order(list(self._offers))
            self._start(dead, birth=1)
            return self._order(list(self._offers))
        return self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self._version += 1
        self._order(list(self._offers))
        for pipe in self._pipes.values():
            pipe.send((self.epoch, list(self._offers)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes.values():
            process.kill()
            process.join()


def _receive(pipe: Connection) -> Any:
    assert pipe.poll(LIMIT_S), "a rank does not answer"
    return pipe.recv()
