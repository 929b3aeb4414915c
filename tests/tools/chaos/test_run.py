"""A whole run against a system of real processes: what is good passes, and everything that is not is found."""

import asyncio
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from serving.errors import ConfigError, UnavailableError
from serving.http_client import ask_gateway
from serving.tools.chaos.console import verdict
from serving.tools.chaos.downtime import Downtime
from serving.tools.chaos.findings import ChaosFindings, find
from serving.tools.chaos.result import ChaosRun, Event
from serving.tools.chaos.run import ChaosOrder, run_chaos
from serving.tools.chaos.scenario import FaultConfig, LoadConfig, PoolsConfig, Scenario, TimesConfig
from serving.tools.chaos.targets import find_session, listed, send, target_of
from tests.tools.chaos.fake_system import FakeSystem

KILLS = (FaultConfig("kill"),)
FREEZES = (FaultConfig("freeze", until_replaced=True),)
LOAD = LoadConfig(rate_per_s=12, asks=5, longest_tokens=16, deadline_s=10)


class Silent:
    """Nobody is told; a test may look."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.events: list[Event] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def event(self, event: Event) -> None:
        self.events.append(event)

    def tick(self, run: ChaosRun, at_s: float, in_flight: int, faults: int) -> None:
        """Not needed."""


def scenario(faults: tuple[FaultConfig, ...] = KILLS, *, settle_s: float = 5.0) -> Scenario:
    times = TimesConfig(first_s=0.2, every_s=0.6, spread=0.0, quiet_s=0.5, settle_s=settle_s)
    return Scenario(times, LOAD, PoolsConfig(), faults)


def play(system: FakeSystem, faults: tuple[FaultConfig, ...] = KILLS, **how: float) -> tuple[ChaosRun, ChaosFindings]:
    order = ChaosOrder("test", scenario(faults, **how), 3, 1.5, system.url)
    run = asyncio.run(run_chaos(order, Silent()))
    return run, find(run)


@pytest.mark.parametrize("faults", [KILLS, FREEZES])
def test_a_system_that_heals_is_clean(faults: tuple[FaultConfig, ...]) -> None:
    with FakeSystem() as system:
        run, found = play(system, faults)
        assert [event.fate for event in run.events] == ["replaced"] * 2
        assert system.lost == 2
    assert found.clean, (found, run.leaks)
    assert found.finished == found.sent >= 12
    assert found.exact == found.compared == found.sent
    assert all(event.replaced_s is not None and event.replaced_s > 0 for event in run.events)
    assert {pool for sample in run.samples for pool in sample.replicas} == {"prefill", "decode"}


def test_a_short_freeze_is_survived() -> None:
    with FakeSystem(frozen_for_s=30.0) as system:
        run, found = play(system, (FaultConfig("freeze", least_s=0.1, most_s=0.2),))
        assert system.lost == 0
    assert {event.fate for event in run.events} == {"survived"}
    assert found.clean


def test_nobody_who_replaces_is_found() -> None:
    with FakeSystem(heals=False) as system, pytest.MonkeyPatch.context() as patch:
        patch.setattr("serving.tools.chaos.run.HEAL_S", 0.5)
        run, found = play(system)
    assert not found.clean
    assert found.not_replaced == 2
    assert {event.fate for event in run.events} == {"not replaced"}


def test_the_last_of_a_pool_is_spared() -> None:
    with FakeSystem(heals=False, pools=("decode",)) as system, pytest.MonkeyPatch.context() as patch:
        patch.setattr("serving.tools.chaos.run.HEAL_S", 0.5)
        run, _ = play(system)
        assert len(system.replicas) == 1
    assert [event.fate for event in run.events] == ["not replaced", "nobody to hit"]


def test_cut_streams_are_lost_requests() -> None:
    with FakeSystem(cut_at_loss=True) as system:
        _, found = play(system)
    assert found.failed > 0
    assert not found.clean
    assert any("in the middle" in reason for reason in found.reasons)


def test_wrong_tokens_are_found() -> None:
    with FakeSystem(wrong_after_loss=True) as system:
        run, found = play(system)
    assert found.exact < found.compared
    assert not found.clean
    assert "token 0 is 2, not 1" in next(iter(run.differences.values()))


def test_leaks_are_found() -> None:
    with FakeSystem(forgets=True) as system:
        system.busy = 0
        run, found = play(system, settle_s=1.0)
        system.busy = 3
        held, _ = play(system, settle_s=1.0)
    assert [line for line in found.leaks if "belongs to nobody" in line]
    assert any(name.endswith(" held") and count == 3 for name, count in held.leaks.counts.items())
    assert not run.leaks.counts


def test_cancel_bursts_count_as_ours() -> None:
    with FakeSystem() as system:
        run, found = play(system, (FaultConfig("cancel_burst", count=5),))
    assert found.cancelled >= 5
    assert found.clean
    assert all(answer.outcome == "cancelled" for answer in run.answers if answer.burst and answer.reason)


def test_faults_from_inside_need_the_systems_leave() -> None:
    with FakeSystem(chaos=False) as system, pytest.raises(ConfigError, match=r"\[chaos\] enabled = true"):
        play(system, (FaultConfig("slow_link"),))


def test_faults_from_inside_are_written_down_and_taken_back() -> None:
    with FakeSystem() as system:
        file = Path("/dev/shm") / f"cloudmatrix-faults-{system.session}"
        seen: list[bool] = []
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(0.05):
                seen.append(file.exists())

        looking = threading.Thread(target=look)
        looking.start()
        run, found = play(system, (FaultConfig("slow_link"),))
        ended.set()
        looking.join()
        assert any(seen)
        assert not file.exists()
    assert {event.fate for event in run.events} == {"passed"}
    assert found.clean


def test_an_interrupt_ends_the_run_early_with_its_findings() -> None:
    class Impatient(Silent):
        def stage(self, text: str) -> None:
            if text.startswith("load"):
                threading.Timer(0.7, signal.raise_signal, [signal.SIGINT]).start()

    with FakeSystem() as system:
        order = ChaosOrder("test", scenario(), 3, 60.0, system.url)
        run = asyncio.run(run_chaos(order, Impatient()))
    assert run.interrupted
    assert 0.3 < run.duration_s < 10.0
    assert find(run).finished > 0


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_interrupt_ends_the_waiting_and_handlers_are_as_before(kind: signal.Signals) -> None:
    def mine(*_: object) -> None:
        raise AssertionError("the run's own handler takes it")

    class Impatient(Silent):
        def stage(self, text: str) -> None:
            super().stage(text)
            if text.startswith("load"):
                threading.Timer(1.0, signal.raise_signal, [kind]).start()
            if text.startswith("waiting until"):
                threading.Timer(0.3, signal.raise_signal, [kind]).start()

    before = signal.signal(kind, mine)
    try:
        with FakeSystem(heals=False) as system:
            told = Impatient()
            begun = time.monotonic()
            run = asyncio.run(run_chaos(ChaosOrder("test", scenario(), 3, 60.0, system.url), told))
        assert time.monotonic() - begun < 20
        assert signal.getsignal(kind) is mine
    finally:
        signal.signal(kind, before)
    assert run.interrupted
    assert told.stages[-1] == "looking for leaks"
    assert {event.fate for event in run.events} == {"not replaced"}
    assert run.leaks.counts


def test_a_schedule_without_faults_is_no_run() -> None:
    with FakeSystem() as system, pytest.raises(ConfigError, match="no fault would come"):
        asyncio.run(run_chaos(ChaosOrder("test", scenario(), 3, 0.6, system.url), Silent()))


def test_a_run_that_hit_nobody_proves_nothing() -> None:
    with FakeSystem(heals=False, pools=("decode",)) as system:
        system.replicas.pop().end()
        run, found = play(system)
    assert {event.fate for event in run.events} == {"nobody to hit"}
    assert not found.clean
    assert found.hits == 0
    assert "no fault hit anybody" in verdict(run, found)


def test_one_look_that_fails_makes_nobody_vanish() -> None:
    with FakeSystem(frozen_for_s=30.0) as system, pytest.MonkeyPatch.context() as patch:
        ask, asked = ask_gateway, [0]

        def blinking(*args: Any, **named: Any) -> dict[str, Any]:
            asked[0] += 1
            if asked[0] > 2 and asked[0] % 2:
                raise UnavailableError("busy for a moment")
            return ask(*args, **named)

        patch.setattr("serving.tools.chaos.watch.ask_gateway", blinking)
        run, _ = play(system, (FaultConfig("freeze", least_s=0.1, most_s=0.2),))
    assert {event.fate for event in run.events} == {"survived"}


def test_a_system_that_contradicts_itself_is_no_reference() -> None:
    with FakeSystem() as system:
        system.lost = 1

        class Fickle(Silent):
            def stage(self, text: str) -> None:
                threading.Timer(0.15, setattr, [system, "wrong_after_loss", True]).start()

        order = ChaosOrder(
            "test", Scenario(load=LoadConfig(asks=12, longest_tokens=24), faults=KILLS), 0, 40.0, system.url
        )
        with pytest.raises(UnavailableError, match="answered in two ways"):
            asyncio.run(run_chaos(order, Fickle()))


def test_no_system_is_told() -> None:
    with pytest.raises(UnavailableError, match="no gateway at"):
        asyncio.run(run_chaos(ChaosOrder("test", scenario(), 0, 1.0, "http://127.0.0.1:1"), Silent()))


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


def test_a_system_elsewhere_is_refused() -> None:
    status = {"pools": [{"name": "decode", "target_replicas": 1, "replicas": [{"replica": "d", "pid": 2**22}]}]}
    with pytest.raises(UnavailableError, match="reached with --address"):
        find_session(status)


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
