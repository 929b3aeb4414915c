"""Live figures, health and the outbox, on numbers computed by hand."""

import asyncio
import gc
import time
from array import array
from pathlib import Path

import pytest

from loadgen.driver import health
from loadgen.driver.health import BEAT_S, CoreWait, Heartbeat, denied_s, percentile
from loadgen.driver.machine import SAMPLE_EVERY_S, ClockLog, MachineLog
from loadgen.driver.messages import Credit, FrameSplitter, RequestEnded, Tick, from_worker
from loadgen.driver.meter import Meter
from loadgen.driver.outbox import Outbox
from loadgen.driver.pacer import Pacer
from loadgen.errors import LoadgenError
from loadgen.record import RequestOutcome, RequestRecord


def tick(sent: int, ok: int, failed: int = 0, running: int = 0, **fields: float) -> Tick:
    return Tick(
        sent=sent, tokens=10 * ok, running=running, waiting=1,
        outcomes={RequestOutcome.OK: ok, RequestOutcome.TIMEOUT: failed} if failed else {RequestOutcome.OK: ok},
        ttft_sum_s=0.5 * ok, ttft_count=ok, tpot_sum_s=0.02 * ok, tpot_count=ok,
        lateness_s=array("d", [0.001] * sent).tobytes(),
    )  # fmt: skip


def test_percentile_interpolates_between_neighbours() -> None:
    assert percentile([], 99) == 0
    assert percentile([5.0], 50) == 5
    assert percentile([0.0, 1.0, 2.0, 3.0, 4.0], 50) == 2
    assert percentile([0.0, 10.0], 99) == pytest.approx(9.9)


def test_the_meter_adds_up_workers_over_its_window() -> None:
    meter = Meter()
    meter.add(0, tick(sent=4, ok=2, failed=1, running=1), 1.0)
    meter.add(1, tick(sent=6, ok=6, running=0), 9.0)
    found = meter.progress(10.0, draining=False, workers=2)
    assert (found.sent, found.finished, found.running, found.waiting, found.tokens) == (10, 9, 1, 2, 80)
    assert found.outcomes == {RequestOutcome.OK: 8, RequestOutcome.TIMEOUT: 1}
    assert found.failed == {RequestOutcome.TIMEOUT: 1}
    assert found.tokens_per_s == 60 / 5  # the first tick is out of the window of five seconds
    assert (found.sent_per_s, found.finished_per_s) == (6 / 5, 6 / 5)
    assert found.ttft_s == pytest.approx(0.5)
    assert found.tpot_s == pytest.approx(0.02)
    assert found.lateness_p99_s == pytest.approx(0.001)
    meter.forget(0)
    assert meter.progress(20.0, draining=True, workers=1).running == 0
    assert meter.progress(20.0, draining=True, workers=1).ttft_s is None

    meter = Meter()
    meter.add(0, tick(sent=4, ok=4), 0.5)
    assert meter.progress(2.0, draining=False, workers=1).finished_per_s == 2.0


def test_clocks_and_cores_are_read() -> None:
    log = ClockLog()
    first = log.samples[0]
    log.tick(first.monotonic_s + SAMPLE_EVERY_S / 2)
    assert len(log.samples) == 1
    log.tick(first.monotonic_s + SAMPLE_EVERY_S)
    assert len(log.samples) == 2
    last = log.close()[-1]
    assert abs((last.realtime_s - first.realtime_s) - (last.monotonic_s - first.monotonic_s)) < 1
    assert last.boottime_s is None or last.boottime_s > last.monotonic_s - 1

    core = CoreWait()
    waited_s = core.waited_s()
    assert 0 <= waited_s <= core.waited_s()
    core.close()
    core.close()
    assert core.waited_s() == 0.0


@pytest.mark.asyncio
async def test_the_heart_counts_every_beat_that_a_pause_swallowed() -> None:
    pacer = Pacer()
    heart = Heartbeat(pacer)
    heart.start(time.monotonic())
    try:
        assert not gc.isenabled()
        await asyncio.sleep(BEAT_S)
        before = len(heart.lags_s())
        time.sleep(6 * BEAT_S)  # noqa: ASYNC251 # a loop that stands still
        await asyncio.sleep(0.005)
        swallowed = list(heart.lags_s())[before:]
        assert len(swallowed) >= 5
        assert max(swallowed) >= 5 * BEAT_S
        assert sorted(swallowed, reverse=True) == pytest.approx(swallowed)
        assert heart.cpu_share() >= 0
    finally:
        heart.stop()
        pacer.close()
    assert gc.isenabled()


@pytest.mark.asyncio
async def test_the_heart_collects_young_garbage_when_it_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_YOUNG_OBJECTS", 100)
    pacer = Pacer()
    heart = Heartbeat(pacer)
    heart.start(time.monotonic())
    try:
        rubbish = [[n] for n in range(5_000)]
        await asyncio.sleep(4 * BEAT_S)
        assert gc.get_count()[0] < len(rubbish)
        assert heart.gc_pause_max_s > 0
    finally:
        heart.stop()
        pacer.close()


@pytest.mark.parametrize(
    ("ran_s", "waited_s", "denied"),
    [(0.030, 0.0, 0.0), (0.001, 0.0, 0.009), (0.015, 0.015, 0.010), (0.030, 0.004, 0.004), (0.0, 0.5, 0.010)],
)
def test_a_late_beat_is_the_threads_own_doing_as_far_as_it_ran(ran_s: float, waited_s: float, denied: float) -> None:
    assert denied_s(0.010, ran_s=ran_s, waited_s=waited_s) == pytest.approx(denied)


@pytest.mark.asyncio
async def test_a_pause_without_work_is_not_the_threads_own_doing() -> None:
    pacer = Pacer()
    heart = Heartbeat(pacer)
    heart.start(time.monotonic())
    try:
        await asyncio.sleep(BEAT_S)
        time.sleep(10 * BEAT_S)  # noqa: ASYNC251 # a loop that stands still
        await asyncio.sleep(0.005)
        assert heart.late_s >= 8 * BEAT_S
        assert heart.denied_s > 0.5 * heart.late_s
    finally:
        heart.stop()
        pacer.close()


def test_use_of_the_machine(tmp_path: Path) -> None:
    """200 ticks of user, 100 of system, 50 of the host; a tenth of a second of it is this program's own."""
    stat = tmp_path / "stat"
    stat.write_text("cpu 1000 0 500 9000 0 0 0 10 0 0\ncpu0 1 2\n")
    now = [10.0]
    log = MachineLog(stat, now=lambda: now[0], own_cpu_s=lambda: 1.0, ticks_per_s=100)
    stat.write_text("cpu 1200 0 600 9700 0 0 0 60 0 0\ncpu0 1 2\n")
    now[0] = 12.0
    use = log.close(0.1)
    assert use is not None
    assert use.others_cores == pytest.approx(1.45)
    assert use.stolen_cores == pytest.approx(0.25)
    assert use.cores >= 1


@pytest.mark.parametrize("text", [None, "", "cpu 1 2 3\n", "cpu a b c d e f g h i\n"])
def test_a_system_that_does_not_tell_what_its_cores_do(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "stat").write_text(text)
    assert MachineLog(tmp_path / "stat").close(0.0) is None


def finished(index: int, size: int = 0) -> RequestRecord:
    return RequestRecord(
        index=index, outcome=RequestOutcome.OK, intended_s=1.0, output_tokens=3,
        chunk_times=array("d", [1.5, 1.6, 1.7]).tobytes(), body=b"x" * size,
    )  # fmt: skip


def test_outbox_writes_records_then_the_tick_then_the_credit() -> None:
    written: list[bytes] = []
    box = Outbox(written.append, lambda: 0, worker=0)
    box.note_sent(1.001, 1.0)
    box.note_sent(1.004, 1.0)
    box.note_ended(1.7)
    box.add(finished(7))
    assert written == []
    box.flush(tokens=30, waiting=2, credit=Credit(5, 6))
    box.flush(tokens=42, waiting=0, credit=Credit(5, 6))
    first, counts, credit, later, _ = [from_worker(body) for body in FrameSplitter().feed(b"".join(written))]
    assert isinstance(first, RequestEnded)
    assert first.record == finished(7)
    assert isinstance(counts, Tick)
    assert (counts.sent, counts.running, counts.waiting, counts.tokens) == (2, 1, 2, 30)
    assert counts.outcomes == {RequestOutcome.OK: 1}
    assert counts.ttft_sum_s == pytest.approx(0.5)
    assert counts.tpot_sum_s == pytest.approx(0.1)
    assert array("d", counts.lateness_s).tolist() == pytest.approx([0.001, 0.004])
    assert credit == Credit(5, 6)
    assert isinstance(later, Tick)
    assert (later.sent, later.tokens, later.outcomes, later.lateness_s) == (0, 12, {}, b"")
    assert (box.sent, box.last_started_s, box.last_ended_s) == (2, 1.004, 1.7)


def test_results_that_nobody_takes_are_an_error_not_a_full_memory() -> None:
    held = [0]
    box = Outbox(lambda data: None, lambda: held[0], worker=3, most_bytes=10_000)
    box.add(finished(1, size=8_000))
    held[0] = 2_000
    with pytest.raises(LoadgenError, match="worker 3: results are not taken"):
        box.add(finished(2))
