"""Waits of a system that was asked to stop."""

import threading
import time
from collections.abc import Callable

import pytest

from serving.cluster import shutdown as module
from serving.cluster.shutdown import announce_shutdown, close_logs


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twentieth of the usual waits, in the same proportion."""
    for name in ("POLL_S", "SILENT_S", "ANNOUNCE_S", "REACH_S", "LOGS_S"):
        monkeypatch.setattr(module, name, getattr(module, name) / 20)


class Asker:
    """The sender of a stop request, repeated `after` this many polls; None = never."""

    def __init__(self, after: int | None = None) -> None:
        self._left = after

    def hurried(self) -> bool:
        """Behave like `Interrupt`."""
        if self._left is None:
            return False
        self._left -= 1
        return self._left < 0


class Gateways:
    """All gateways: `running` requests end when told with no time left, or by `end`."""

    def __init__(self, running: int) -> None:
        self.running = running
        self.told: list[float] = []
        self.end = threading.Event()

    def tell(self, seconds: float) -> int:
        """Behave like `shutdown.Tell`."""
        self.told.append(seconds)
        if not self.running or self.end.wait(seconds):
            return 0
        left, self.running = self.running, 0
        return left


def run(drain_s: float, asker: Asker, tell: Callable[[float], int]) -> tuple[list[str], float]:
    """Run the shutdown. Returns: the printed lines, and its duration [s]."""
    said: list[str] = []
    begun = time.monotonic()
    announce_shutdown(drain_s, asker, tell, said.append)
    return said, time.monotonic() - begun


def test_nobody_waits_when_nothing_runs() -> None:
    gateways = Gateways(0)
    assert run(30.0, Asker(), gateways.tell)[0] == ["stopping ..."]
    assert gateways.told == [30.0]


def test_what_runs_ends_by_itself() -> None:
    gateways = Gateways(3)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        gateways.end.set()

    announce_shutdown(30.0, Asker(), gateways.tell, say)
    (line,) = said
    assert "for 30 s; Ctrl-C stops now" in line


def test_what_does_not_end_is_ended() -> None:
    said, _ = run(0.05, Asker(), Gateways(3).tell)
    assert said[-1] == "3 requests had to be aborted"


def test_a_second_signal_ends_it_at_once() -> None:
    gateways = Gateways(1)
    said, took = run(300.0, Asker(after=25), gateways.tell)
    assert gateways.told == [300.0, 0.0]
    assert said[-2:] == ["stopping at once ...", "1 request had to be aborted"]
    assert took < 100


def test_two_signals_in_one_moment() -> None:
    gateways = Gateways(1)
    assert run(300.0, Asker(after=0), gateways.tell)[0] == ["stopping ...", "1 request had to be aborted"]
    assert gateways.told == [0.0]


@pytest.mark.parametrize("drain_s", [0.0, 0.2])
def test_a_cluster_that_does_not_answer_holds_nothing_up(drain_s: float) -> None:
    never = threading.Event()
    _, took = run(drain_s, Asker(), lambda _: int(never.wait(60)))
    assert took < 30
    never.set()


def test_logs_that_are_closed_need_no_word() -> None:
    said: list[str] = []
    told: list[float] = []

    def tell(seconds: float) -> int:
        told.append(seconds)
        return 0

    close_logs(tell, said.append)
    assert (said, told) == ([], [module.LOGS_S])


@pytest.mark.parametrize("trouble", ["raises", "hangs", "one of them"])
def test_logs_that_cannot_be_closed_hold_nothing_up(trouble: str) -> None:
    never = threading.Event()

    def tell(_: float) -> int:
        if trouble == "raises":
            raise LookupError("no such actor")
        return 1 if trouble == "one of them" else int(never.wait(60))

    said: list[str] = []
    begun = time.monotonic()
    close_logs(tell, said.append)
    never.set()
    assert time.monotonic() - begun < 30
    assert [line.partition(";")[0] for line in said] == ["not every decision log could be closed"]


def test_a_cluster_that_fails_is_stopped_all_the_same() -> None:
    def broken(_: float) -> int:
        raise LookupError("no such actor")

    assert run(30.0, Asker(), broken)[0] == ["stopping ..."]
