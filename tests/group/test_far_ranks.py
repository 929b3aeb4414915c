"""Ranks on two hosts made of namespaces: the tokens of one process, also of those who go on when a host is lost."""

import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Queue
from typing import Any

import msgspec
import pytest

from serving.group.core.group_map import regroup_map
from serving.values.group import RankOffer, RegroupOrder
from tests.deploy.hosts import Hosts, hosts
from tests.group.far_rank import Case, packed, work
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
    """The shell of two ranks, on hosts "left" and "right"."""

    def __init__(self, pair: Hosts, folder: Path, stack: contextlib.ExitStack) -> None:
        names = ("left", "right")
        cases = [Case(str(folder), rank, 2, name, pair.addresses[name], SILENCE_S) for rank, name in enumerate(names)]
        self.ranks = [stack.enter_context(contextlib.closing(FarRank(pair, case.node, case))) for case in cases]
        texts = [rank.next("offer")["offer"] for rank in self.ranks]
        self._offers = [msgspec.msgpack.decode(base64.b64decode(text), type=RankOffer) for text in texts]
        self._epoch = 0

    def form(self, members: Sequence[int]) -> None:
        """Give these members a map, then begin their epoch."""
        self._epoch += 1
        offers = tuple(self._offers[rank] for rank in members)
        contents = {one.rank: one.held for one in offers}
        order = RegroupOrder(self._epoch, regroup_map(contents, 2, offers[0].experts, self._epoch), offers)
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


@pytest.mark.parametrize("fault", ["kill", "cut", "freeze"])
def test_a_lost_host_costs_a_pause(fault: str, folder: Path, shell: tuple[Hosts, Shell]) -> None:
    pair, group = shell
    left, right = group.ranks
    group.form((0, 1))
    left.tell(run=1)
    right.tell(run=2)
    answers = left.next("answers")["answers"] | right.next("answers")["answers"]
    assert answers == wanted(folder, 1, 2)
    for run in RUNS:
        left.tell(run=run)
    pair.does(fault, "right")
    assert left.next("lost") == {"lost": 1}
    group.form((0,))
    facts = [left.next("answers") for _ in RUNS]
    assert {name: tokens for one in facts for name, tokens in one["answers"].items()} == wanted(folder, *RUNS)
    longest_s = max(one["gap_s"] for one in facts)
    print(f"{fault}: the longest pause was {longest_s:.2f} s")
    assert longest_s < LOST_S
