"""Recorded engines: every input is in the log, and a replay produces every outcome again."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import settings

from serving.errors import DecisionLogError, EngineError, HandoffChecksumError, LedgerError
from serving.ids import SequenceId
from serving.instance.core.settings import EngineRole
from serving.tools.replay import first_difference, replay, replay_log
from serving.values.decision_log import MAGIC, LogEncoder
from serving.values.news import Lost
from tests.instance.bench import spec, ticket_for
from tests.instance.decision_logs import doctored, pairs
from tests.instance.engine_machine import EngineMachine
from tests.instance.recorded_bench import RecordedBench

A = SequenceId("a")


def life() -> RecordedBench:
    """Two sequences, one cancelled, up to the end of the other."""
    bench = RecordedBench()
    bench.engine.add(spec("a"), 0.25)
    bench.engine.add(spec("b", (7, 8, 9), logprobs=0, prompt_logprobs=0), 0.5)
    for step in range(8):
        bench.now = float(step)
        bench.step()
        if step == 2:
            bench.engine.cancel(SequenceId("b"), 2.5)
    assert bench.engine.idle()
    return bench


def test_a_log_is_replayed_identically() -> None:
    bench = life()
    data = bench.log.close()
    result = replay_log(data, "log")
    assert (result.kind, result.name, result.identical, result.ending) == ("engine", "bench", True, "")
    assert result.calls == {"NextStep": 8, "StepDone": 5, "Add": 2, "Cancel": 1}
    assert result.total == 16
    again = replay_log(data, "log")
    assert again == result, "a replay leaves the log alone"


def test_refusals_are_outcomes_too() -> None:
    bench = RecordedBench(max_waiting=1)
    bench.engine.add(spec("a"), 0.0)
    assert bench.engine.add(spec("b"), 0.0) is not None
    with pytest.raises(LedgerError):
        bench.engine.store_finished(7, 0.0)
    bench.engine.drain()
    data = bench.log.close()
    [refused] = pairs(data)[1][1]
    assert (refused["is"], refused["kind"], refused["reason"]) == (
        "Refused",
        "overloaded",
        "1 sequences are already queued",
    )
    assert pairs(data)[2][1] == {"raised": "LedgerError", "text": "store order 7 finished twice, or was never issued"}
    assert replay_log(data, "log").identical


def test_failures_and_handoffs_are_replayed() -> None:
    bench = RecordedBench(EngineRole.DECODE)
    one = spec("a", output=(1,))
    bench.engine.adopt(one, ticket_for(one), 0.0)
    assert bench.engine.next_action(0.0).pulls
    bench.engine.pull_finished(A, HandoffChecksumError("block 1 differs"), 0, 0.1)
    bench.engine.add(spec("b"), 0.2)
    assert bench.engine.next_action(0.3).plan is not None
    bench.engine.step_failed(EngineError("device lost"), 0.4)
    told = [event.reason for event in bench.engine.take_events() if isinstance(event, Lost)]
    assert told == ["HandoffChecksumError: block 1 differs", "EngineError: device lost"]
    data = bench.log.close()
    assert replay_log(data, "log").identical

    def lie(log: list[tuple[Any, Any]]) -> None:
        log[2][0][1][3] = "HandoffChecksumError: block 2 differs"

    found = replay_log(doctored(data, lie), "log").difference
    assert found is not None
    assert found.where == "[0].reason"


CUT = "its process was killed, it still runs, or the file was cut"


def test_a_log_that_ends_in_a_frame_is_replayed_so_far() -> None:
    data = life().log.close()
    frame = len(data) - data.rindex(b"\x92\x92\xa3End") + 16
    whole = replay_log(data[:-frame], "log")
    assert (whole.total, whole.ending) == (
        16,
        f"no end was written: {CUT}",
    )
    for cut in (1, frame - 1, frame + 1):
        result = replay_log(data[:-cut], "log")
        assert result.identical
        assert result.total == 15 + (cut < frame)
        assert result.ending == f"the last frame is unfinished: {CUT}"


def frames(data: bytes) -> list[bytes]:
    """A log in its parts: the header before the first call, then each call's bytes."""
    parts, at = [], len(MAGIC)
    while at < len(data):
        size = 16 + int.from_bytes(data[at : at + 4], "little")
        parts.append(data[at : at + size])
        at += size
    return [MAGIC + parts[0], *parts[1:]]


@pytest.mark.parametrize(
    "change",
    [
        lambda calls: calls.pop(3),
        lambda calls: calls.insert(3, calls[3]),
        lambda calls: calls.insert(3, calls.pop(4)),
        lambda calls: calls.append(calls[-1]),
        lambda calls: calls.__setitem__(3, calls[3][:8] + bytes(8) + calls[3][16:]),
    ],
    ids=["dropped", "doubled", "swapped", "after the end", "changed"],
)
def test_calls_that_are_not_as_they_were_written_are_noticed(change: Callable[[list[bytes]], object]) -> None:
    calls = frames(life().log.close())
    assert replay_log(b"".join(calls), "log").complete
    change(calls)
    with pytest.raises(DecisionLogError, match=r"were left out, doubled or swapped|checksum of frame|after the end"):
        replay_log(b"".join(calls), "log")


def test_a_header_alone_is_not_complete() -> None:
    result = replay_log(frames(life().log.close())[0], "log")
    assert (result.total, result.complete) == (0, False)
    assert result.ending.startswith("not one call is in it; ")


def kind(pair: tuple[Any, Any]) -> str:
    """Name of an event."""
    return pair[0][1][0] if pair[0][0] == "EngineCall" else ""


def change_token(log: list[tuple[Any, Any]]) -> None:
    (call, _) = next(pair for pair in log if kind(pair) == "StepDone")
    call[1][1]["results"][0]["tokens"][0] ^= 1


def change_plan(log: list[tuple[Any, Any]]) -> None:
    (_, effects) = [pair for pair in log if kind(pair) == "NextStep"][3]
    effects[0]["sequences"][0][4] += 1


def change_time(log: list[tuple[Any, Any]]) -> None:
    log[0][0][2] = -10_000.0


def drop_call(log: list[tuple[Any, Any]]) -> None:
    del log[[kind(pair) for pair in log].index("Cancel")]


def drop_event(log: list[tuple[Any, Any]]) -> None:
    (_, effects) = next(pair for pair in log if kind(pair) == "StepDone")
    del effects[-1]


@pytest.mark.parametrize(
    ("change", "number", "call", "where"),
    [
        (change_token, 4, "StepDone at 0.000000 s", "[0].tokens"),
        (change_plan, 10, "NextStep at 3.000000 s", "[0].sequences[0]"),
        (change_time, 3, "NextStep at 0.000000 s", "[0].is"),
        (drop_call, 9, "NextStep at 3.000000 s", "[0].sequences[0]"),
        (drop_event, 4, "StepDone at 0.000000 s", "length of the outcome"),
    ],
)
def test_whatever_is_changed_is_found(change: Callable, number: int, call: str, where: str) -> None:
    found = replay_log(doctored(life().log.close(), change), "log").difference
    assert found is not None
    assert (found.number, found.call, found.where) == (number, call, where)
    assert found.expected != found.got
    assert str(found) == f"call {number}, {call}: {where} was {found.expected}, is now {found.got}"


def test_nothing_changed_is_nothing_found() -> None:
    data = life().log.close()
    assert doctored(data, lambda log: None) == data


BROKEN_TEXT = b"\x94\xacEngineHeader\xa1\xff\x80\x00"
"""A header whose name is not UTF-8."""


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: b"{}", "is not a decision log of this version"),
        (lambda data: MAGIC, "not even its header was written"),
        (lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:], "checksum of frame 0 is wrong"),
        (lambda data: MAGIC + b"\xff" * 8 + data, "a frame of 4294967295 bytes"),
        (lambda data: LogEncoder().begin(["Else", 1]), "its header is not of this version"),
        (lambda data: LogEncoder().begin(msgspec.Raw(BROKEN_TEXT)), "its header is not of this version"),
        (lambda data: doctored(data, lambda log: log[0][0].__setitem__(0, "Sub")), "call 1 is not of this version"),
        (lambda data: LogEncoder().begin(["EngineHeader", "n", {}, 0]), "no engine can be built"),
    ],
)
def test_what_is_no_log_is_named(spoil: Callable[[bytes], bytes], message: str) -> None:
    with pytest.raises(DecisionLogError, match=message):
        replay_log(spoil(life().log.close()), "log")


def test_a_file_that_is_not_there(tmp_path: Any) -> None:
    with pytest.raises(DecisionLogError, match="No such file"):
        replay(tmp_path / "none")


def test_long_values_are_cut_in_messages() -> None:
    assert first_difference({"a": [[1], [2, 3]]}, {"a": [[1], [2, 4]]}) == ("a[1]", "[2, 3]", "[2, 4]")
    assert first_difference({"a": 1}, {"a": 1, "b": None}) == ("b", "'absent'", "None")
    where, old, new = first_difference(list(range(500)), [])
    assert (where, new) == ("", "[]")
    assert old.endswith("... (2390 characters)")


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=60)
