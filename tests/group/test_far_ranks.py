"""Ranks on two hosts made of namespaces: the tokens of one process, also of those who go on when a host is lost."""

import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import msgspec
import pytest

from serving.group.core.group_map import regroup_map
from serving.values.group import RankOffer, RegroupOrder
from tests.cases.nightly import mostly_nightly
from tests.deploy.hosts import Hosts, hosts
from tests.group.far_rank import MOST_RANKS, Case, packed, work
from tests.group.rank_threads import RankThreads
from tests.instance.native_pair import native_or_skip
from tests.model.random_checkpoint import write_random_checkpoint

pytestmark = pytest.mark.timeout(300)
LIMIT_S = 120.0
FACTS = ("offer", "followed", "answers", "lost")
SILENCE_S = 3.0
"""Longer than usual, for machines that are busy."""
RUNS = range(3, 10)
"""So many that the fault comes before their end."""
LOST_S = SILENCE_S + 5.0
"""Longest pause of the others."""


@dataclass(frozen=True)
class Layout:
    """Ranks of a group.

    Args:
        hosts: of each rank; that of rank 0 stays. experts: numbers of expert ranks, which come after attention ranks.
        reports: rank that reports the loss of `lost`, on the other host.
    """

    hosts: Sequence[str]
    experts: tuple[int, ...]
    reports: int
    lost: int

    @property
    def sources(self) -> list[int]:
        """Ranks with attention."""
        return [rank for rank in range(len(self.hosts)) if rank not in self.experts]


LAYOUTS = {
    "EP-2": Layout(("left", "right"), (), 0, 1),
    "2:1": Layout(("left", "right", "left"), (2,), 2, 1),
    "1:2": Layout(("left", "left", "right"), (1, 2), 0, 2),
}


class FarRank:
    """A rank's process on a host."""

    def __init__(self, pair: Hosts, host: str, case: Case) -> None:
        text = msgspec.json.encode(case).decode()
        self._process = subprocess.Popen(
            pair.command(host, sys.executable, "-m", "tests.group.far_rank", text),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.getcwd()},
        )  # fmt: skip
        self._facts: dict[str, Queue[dict[str, Any]]] = {name: Queue() for name in FACTS}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            facts = json.loads(line)
            self._facts[next(iter(facts))].put(facts)

    def tell(self, **command: Any) -> None:
        """Give it a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def next(self, name: str) -> dict[str, Any]:
        """Its next facts that begin with this name."""
        return self._facts[name].get(timeout=LIMIT_S)

    def answers(self) -> dict[str, list[int]]:
        """Those of its next run."""
        found: dict[str, list[int]] = self.next("answers")["answers"]
        return found

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]


class Shell:
    """The shell of a group, on hosts "left" and "right"."""

    def __init__(self, pair: Hosts, folder: Path, stack: contextlib.ExitStack) -> None:
        self._pair, self._folder, self._stack = pair, folder, stack
        self.ranks: dict[int, FarRank] = {}
        self._offers: dict[int, RankOffer] = {}
        self._epoch = 0

    def start(self, layout: Layout) -> None:
        """Start the ranks."""
        for rank, host in enumerate(layout.hosts):
            address = self._pair.addresses[host]
            ranks = len(layout.hosts) - len(layout.experts)
            case = Case(str(self._folder), rank, ranks, layout.experts, host, address, SILENCE_S)
            self.ranks[rank] = self._stack.enter_context(contextlib.closing(FarRank(self._pair, host, case)))
        for rank, far in self.ranks.items():
            self._offers[rank] = msgspec.msgpack.decode(base64.b64decode(far.next("offer")["offer"]), type=RankOffer)

    def form(self, members: Sequence[int], *, keeps_epoch: bool = False) -> None:
        """Give these members a map, then begin their epoch, or keep the present one."""
        self._epoch += not keeps_epoch
        offers = tuple(self._offers[rank] for rank in members)
        contents = {one.rank: one.held for one in offers if one.role.has_experts}
        order = RegroupOrder(self._epoch, regroup_map(contents, MOST_RANKS, offers[0].experts, self._epoch), offers)
        for rank in members:
            self.ranks[rank].tell(order=packed(order))
        for rank in members:
            self.ranks[rank].next("followed")
        for rank in members:
            self.ranks[rank].tell(begin=self._epoch, members=list(members))


@pytest.fixture(scope="module")
def folder(pytestconfig: pytest.Config) -> Path:
    """In the repository, which all hosts see; each has its own /tmp."""
    native_or_skip()
    return write_random_checkpoint(pytestconfig.cache.mkdir("far-ranks"), dtype="bfloat16")


@pytest.fixture
def shell(folder: Path) -> Iterator[tuple[Hosts, Shell]]:
    with hosts("left", "right") as pair, contextlib.ExitStack() as stack:
        yield pair, Shell(pair, folder, stack)
        pair.does("kill", "right")


def wanted(folder: Path, *seeds: int) -> dict[str, list[int]]:
    alone = RankThreads(folder, "bfloat16", 1)
    return {name: answer.tokens for seed in seeds for name, answer in alone.alone(work(seed)).items()}


@pytest.mark.parametrize(
    ("name", "fault"),
    mostly_nightly(
        [(name, fault) for name in LAYOUTS for fault in ("kill", "cut", "freeze")],
        [("EP-2", "cut"), ("2:1", "freeze"), ("1:2", "kill")],
        "tests/group/test_far_ranks.py::test_a_lost_host_costs_a_pause",
    ),
)
def test_a_lost_host_costs_a_pause(name: str, fault: str, folder: Path, shell: tuple[Hosts, Shell]) -> None:
    """With an attention rank alone, which costs the others nothing, neither an epoch."""
    (pair, group), layout = shell, LAYOUTS[name]
    group.start(layout)
    group.form(range(len(layout.hosts)))
    for rank in layout.sources:
        group.ranks[rank].tell(run=1 + rank)
    answers = {name: tokens for rank in layout.sources for name, tokens in group.ranks[rank].answers().items()}
    assert answers == wanted(folder, *(1 + rank for rank in layout.sources))
    stays = group.ranks[0]
    for run in RUNS:
        stays.tell(run=run)
    pair.does(fault, "right")
    assert group.ranks[layout.reports].next("lost") == {"lost": layout.lost}
    left = [rank for rank, host in enumerate(layout.hosts) if host == "left"]
    group.form(left, keeps_epoch=layout.lost in layout.sources and bool(layout.experts))
    facts = [stays.next("answers") for _ in RUNS]
    assert {name: tokens for one in facts for name, tokens in one["answers"].items()} == wanted(folder, *RUNS)
    longest_s = max(one["gap_s"] for one in facts)
    print(f"{name}, {fault}: the longest pause was {longest_s:.2f} s")
    assert longest_s < LOST_S
