"""Frames survive any cutting, and messages are restored exactly."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.driver import messages
from loadgen.driver.messages import FrameSplitter, Mode, Supply, frame, from_worker, to_worker
from loadgen.driver.progress import WorkerHealth
from loadgen.errors import UsageError
from loadgen.plan import Behaviour, Conduct, Conversation, LoadJob, PromptMessage, Role, Turn
from loadgen.record import RequestOutcome, RequestRecord
from tests.loadgen.driver.driving import settings

JOB = LoadJob(
    index=3,
    due_s=1.5,
    conversation=Conversation(
        turns=[
            Turn(prompt="text", output_tokens=1, body=b'{"exact": 1}'),
            Turn(prompt=[1, 2, 3], output_tokens=2, hash_ids=[7], block_tokens=16),
            Turn(prompt=[PromptMessage(Role.USER, "hi")], output_tokens=3, think_s=0.5),
        ],
        tenant="a",
    ),
    behaviours=[Behaviour(), Behaviour(conduct=Conduct.DISCONNECT, leave_after_s=1.0), Behaviour()],
)
TO_WORKER: list[messages.ToWorker] = [
    messages.Setup(settings=settings(), worker=1, slots=2, slot_openings_s=[0.0, 1.0], run_id="r"), Supply([JOB]),
    messages.Prepare(), messages.StartRun(12.5), messages.NoMoreJobs(), messages.EndSending(), messages.Cut(),
]  # fmt: skip
FROM_WORKER: list[messages.FromWorker] = [
    messages.WorkerReady(),
    messages.Credit(5, 7),
    messages.Tick(
        sent=1, tokens=2, running=3, waiting=4, outcomes={RequestOutcome.OK: 5}, ttft_sum_s=0.5, ttft_count=1,
        tpot_sum_s=0.25, tpot_count=1, lateness_s=b"12345678",
    ),
    messages.RequestEnded(
        RequestRecord(index=1, outcome=RequestOutcome.TRUNCATED, chunk_times=b"12345678", body=b"{}")
    ),
    messages.WorkerDone(health=WorkerHealth(worker=1, cpu_share=0.5), sending_ended_s=1.0, ended_s=2.0),
    messages.WorkerFailed(True, "why"),
]  # fmt: skip


@pytest.mark.parametrize("message", TO_WORKER, ids=lambda message: type(message).__name__)
def test_to_worker_and_back(message: messages.ToWorker) -> None:
    (body,) = FrameSplitter().feed(frame(message))
    assert to_worker(body) == message


@given(cuts=st.lists(st.integers(0, 2000), max_size=30))
def test_frames_survive_any_cutting(cuts: list[int]) -> None:
    whole = b"".join(frame(message) for message in FROM_WORKER)
    ends = [*sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    splitter, found, at = FrameSplitter(), [], 0
    for end in ends:
        found += [from_worker(body) for body in splitter.feed(whole[at:end])]
        at = end
    assert found == FROM_WORKER


def test_what_is_no_message_and_no_cap() -> None:
    with pytest.raises(msgspec.DecodeError):
        to_worker(b"\xc1")
    with pytest.raises(msgspec.DecodeError):
        from_worker(frame(messages.Prepare())[4:])
    some = settings(workers=3)
    assert some.workers_used() == 3
    assert some.slots_of(2) is None
    assert some.slot_openings_s(2) == []


@given(concurrency=st.integers(1, 300), workers=st.integers(1, 40))
def test_slots_sum_exactly_and_no_worker_is_without(concurrency: int, workers: int) -> None:
    some = settings(mode=Mode.CLOSED, concurrency=concurrency, workers=workers)
    slots = [some.slots_of(worker) or 0 for worker in range(some.workers_used())]
    assert sum(slots) == concurrency
    assert min(slots) >= 1
    assert max(slots) - min(slots) <= 1
    assert [len(some.slot_openings_s(worker)) for worker in range(some.workers_used())] == slots


@given(concurrency=st.integers(1, 300), workers=st.integers(1, 40), ramp_s=st.floats(0, 100))
def test_slots_open_evenly_over_the_ramp(concurrency: int, workers: int, ramp_s: float) -> None:
    some = settings(mode=Mode.CLOSED, concurrency=concurrency, workers=workers, concurrency_ramp_s=ramp_s)
    openings = sorted(opening for worker in range(some.workers_used()) for opening in some.slot_openings_s(worker))
    assert openings == pytest.approx([slot * ramp_s / concurrency for slot in range(concurrency)])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mode": Mode.CLOSED}, "needs --concurrency"),
        ({"concurrency": 0}, "at least 1"),
        ({"workers": 0}, "at least 1"),
        ({"drain_s": -1.0}, "drain_s"),
        ({"concurrency_ramp_s": -1.0}, "concurrency_ramp_s"),
        ({"request_timeout_s": 0.0}, "request_timeout_s"),
        ({"connect_timeout_s": 0.0}, "connect_timeout_s"),
    ],
)
def test_refuses_what_cannot_be_driven(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        settings(**fields).check()
