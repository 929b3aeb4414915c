"""A whole run against a system of real processes: a correct system passes, and every defect is found."""

import asyncio
import itertools
import signal
import threading
import time
from pathlib import Path
from typing import Any, Self

import pytest

from hardware.faults import FaultKind
from serving.client.http_client import ask_gateway
from serving.errors import ConfigError, UnavailableError
from serving.faults.scenario import FaultConfig, LoadConfig, PoolsConfig, Scenario, TimesConfig
from serving.terminal import ending_signals
from serving.tools.chaos.chaos_result import ChaosRun, Event
from serving.tools.chaos.chaos_run import HEAL_S, ChaosOrder, run_chaos
from serving.tools.chaos.chaos_tables import verdict
from serving.tools.chaos.findings import ChaosFindings, find
from serving.tools.chaos.targets import find_session, listed, send, target_of
from serving.tools.chaos.watch import Downtime
from tests.tools.chaos.fake_system import FakeSystem

KILLS = (FaultConfig(FaultKind.KILL),)
LOAD = LoadConfig(rate_per_s=12, asks=5, longest_tokens=16, deadline_s=10)


class Silent:
    """Progress without output; a test may poll."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.events: list[Event] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def event(self, event: Event) -> None:
        self.events.append(event)

    def tick(self, run: ChaosRun, at_s: float, in_flight: int, faults: int) -> None:
        """Do nothing."""


def scenario(faults: tuple[FaultConfig, ...] = KILLS, *, settle_s: float = 5.0, in_turn: bool = False) -> Scenario:
    times = TimesConfig(first_s=0.2, every_s=0.6, spread=0.0, quiet_s=0.5, settle_s=settle_s, in_turn=in_turn)
    return Scenario(times, LOAD, PoolsConfig(), faults)


def play(
    system: FakeSystem, faults: tuple[FaultConfig, ...] = KILLS, duration_s: float = 1.5, **how: Any
) -> tuple[ChaosRun, ChaosFindings]:
    order = ChaosOrder("test", scenario(faults, **how), 3, duration_s, system.url)
    run = asyncio.run(run_chaos(order, Silent()))
    return run, find(run)


class Seen:
    """Whether a file ever existed."""

    def __init__(self, file: Path) -> None:
        self._file, self._ended, self.once = file, threading.Event(), False
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            self.once |= self._file.exists()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


@pytest.mark.real_time
def test_a_system_that_heals_is_clean_whatever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fault of each kind in turn; every second poll of the system fails, which makes no replica count as lost."""
    frozen = FaultConfig(FaultKind.FREEZE, until_replaced=True, pools=("prefill",))
    briefly = FaultConfig(FaultKind.FREEZE, least_s=0.05, most_s=0.1, pools=("aggregated",))
    inside = (FaultConfig(FaultKind.CANCEL_BURST, count=5), FaultConfig(FaultKind.SLOW_LINK))
    asked = itertools.count()

    def blinking(*args: Any, **named: Any) -> dict[str, Any]:
        number = next(asked)
        if number > 1 and number % 2:
            raise UnavailableError("busy for a moment")
        return ask_gateway(*args, **named)

    monkeypatch.setattr("serving.tools.chaos.watch.ask_gateway", blinking)
    with FakeSystem(pools=("prefill", "decode", "aggregated"), frozen_for_s=2.0) as system:
        file = Path("/dev/shm") / f"cloudmatrix-faults-{system.session}"
        with Seen(file) as written:
            run, found = play(
                system, (FaultConfig(FaultKind.KILL, pools=("decode",)), frozen, briefly, *inside), 3.5, in_turn=True
            )
        assert system.lost == 2
        assert written.once
        assert not file.exists(), "taken back"
    fates = {(event.kind, event.lasts_s > 1.0): event.fate for event in run.events}
    assert fates == {
        ("kill", False): "replaced", ("freeze", True): "replaced", ("freeze", False): "survived",
        ("cancel_burst", False): "passed", ("slow_link", True): "passed",
    }  # fmt: skip
    assert found.clean, (found, run.leaks)
    assert found.cancelled >= 5
    assert all(answer.outcome == "cancelled" for answer in run.answers if answer.burst and answer.reason)
    assert found.finished + found.cancelled == found.sent
    assert found.finished >= 12
    assert found.exact == found.compared
    assert all(event.replaced_s is None or event.replaced_s > 0 for event in run.events)
    assert {pool for sample in run.samples for pool in sample.replicas} == set(system.pools)


def test_what_is_lost_wrong_or_left_is_found() -> None:
    with FakeSystem(cut_at_loss=True, wrong_after_loss=True, forgets=True, busy=3) as system:
        run, found = play(system, settle_s=0.5)
    assert not found.clean
    assert found.failed > 0
    assert any("in the middle" in reason for reason in found.reasons)
    assert found.exact < found.compared
    assert any("token 0 is 2, not 1" in difference for difference in run.differences.values())
    assert [line for line in found.leaks if "belongs to nobody" in line]
    assert any(name.endswith(" held") and count == 3 for name, count in run.leaks.counts.items())


def test_nobody_who_replaces_is_found_and_the_last_of_a_pool_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.tools.chaos.chaos_run.HEAL_S", 0.3)
    with FakeSystem(heals=False, pools=("decode",)) as system:
        run, found = play(system, settle_s=0.3)
        assert len(system.replicas) == 1
    assert [event.fate for event in run.events] == ["not replaced", "nobody to hit"]
    assert found.not_replaced == 1
    assert not found.clean


def test_an_interrupt_ends_the_run_a_second_one_the_waiting_and_handlers_are_as_before() -> None:
    def mine(*_: object) -> None:
        raise AssertionError("the run's own handler takes it")

    class Impatient(Silent):
        def stage(self, text: str) -> None:
            super().stage(text)
            if text.startswith("load"):
                threading.Timer(0.7, signal.raise_signal, [signal.SIGINT]).start()
            if text.startswith("waiting until"):
                threading.Timer(0.1, signal.raise_signal, [signal.SIGHUP]).start()

    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(kind, mine) for kind in kinds]
    try:
        assert ending_signals() == kinds
        with FakeSystem(heals=False) as system:
            told = Impatient()
            begun = time.monotonic()
            run = asyncio.run(run_chaos(ChaosOrder("test", scenario(), 3, 60.0, system.url), told))
        assert time.monotonic() - begun < HEAL_S / 2
        assert [signal.getsignal(kind) for kind in kinds] == [mine] * 3
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
    assert run.interrupted
    assert 0.3 < run.duration_s < 10.0
    assert find(run).finished > 0
    assert told.stages[-1] == "looking for leaks"
    assert {event.fate for event in run.events} == {"not replaced"}
    assert run.leaks.counts


def test_what_is_no_run_is_refused() -> None:
    with FakeSystem(chaos=False) as system:
        with pytest.raises(ConfigError, match=r"\[chaos\] enabled = true"):
            play(system, (FaultConfig(FaultKind.SLOW_LINK),))
        with pytest.raises(ConfigError, match="no fault would come"):
            play(system, duration_s=0.6)
    with pytest.raises(UnavailableError, match="nothing listens at"):
        asyncio.run(run_chaos(ChaosOrder("test", scenario(), 0, 1.0, "http://127.0.0.1:1"), Silent()))
    status = {"pools": [{"name": "decode", "target_replicas": 1, "replicas": [{"replica": "d", "pid": 2**22}]}]}
    with pytest.raises(UnavailableError, match="reached with --address"):
        find_session(status)


def test_a_run_that_hit_nobody_proves_nothing() -> None:
    with FakeSystem(heals=False, pools=("decode",)) as system:
        system.replicas.pop().end()
        run, found = play(system, settle_s=0.3)
    assert {event.fate for event in run.events} == {"nobody to hit"}
    assert not found.clean
    assert found.hits == 0
    assert "no fault hit anybody" in verdict(found)


def test_a_system_that_contradicts_itself_is_no_reference() -> None:
    with FakeSystem() as system:
        system.lost = 1

        class Fickle(Silent):
            def stage(self, text: str) -> None:
                threading.Timer(0.15, setattr, [system, "wrong_after_loss", True]).start()

        order = ChaosOrder(
            "test", Scenario(load=LoadConfig(asks=12, longest_tokens=24), faults=KILLS), 0, 40.0, system.url
        )
        with pytest.raises(UnavailableError, match="two different responses"):
            asyncio.run(run_chaos(order, Fickle()))


def test_only_replicas_of_the_session_are_targets() -> None:
    with FakeSystem() as system, FakeSystem() as other:
        status = system.status()
        assert find_session(status) == system.session
        pool, name, pid = listed(status)[0]
        mine = target_of(pool, name, pid, system.session)
        assert mine is not None
        assert target_of(pool, name, pid, other.session) is None, "another system's"
        assert target_of("x", "x", 1, system.session) is None, "no replica at all"
        system.replicas[0].process.kill()
        system.replicas[0].process.wait()
        assert not send(mine, signal.SIGSTOP), "nobody gets a signal that was meant for who had the number before"


def test_from_the_last_moment_that_it_was_ready_to_the_next() -> None:
    run = ChaosRun("test", 0, "abc", "model")

    async def scene(system: FakeSystem) -> float:
        downtime = Downtime(run, system.url, None)
        await downtime.ask()
        assert run.downs == []
        before = time.monotonic()
        for ready in (False, False, True, True, False):
            system.ready = ready
            await downtime.ask()
        return before

    with FakeSystem() as system:
        before = asyncio.run(scene(system))
    first, second = run.downs
    assert first.begun_s <= before < first.ended_s <= second.begun_s < second.ended_s


def test_nobody_who_answers_is_down() -> None:
    run = ChaosRun("test", 0, "abc", "model")
    asyncio.run(Downtime(run, "http://127.0.0.1:1", None).ask())
    assert len(run.downs) == 1
