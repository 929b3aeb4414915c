"""Frames survive any cutting, and messages come back as they went."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.driver import messages
from loadgen.driver.messages import FrameSplitter, Supply, frame, from_worker, to_worker
from loadgen.driver.progress import WorkerHealth
from loadgen.plan import Behaviour, Conduct, Conversation, LoadJob, PromptMessage, Role, Turn
from loadgen.record import RequestOutcome, RequestRecord
from tests.loadgen.driver.drive_settings import settings

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
    messages.Setup(settings=settings(), worker=1, slots=2, slot_openings_s=[0.0, 1.0], run_id="r"),
    Supply([JOB]),
    messages.Prepare(),
    messages.StartRun(12.5),
    messages.NoMoreJobs(),
    messages.EndSending(),
    messages.Cut(),
]
FROM_WORKER: list[messages.FromWorker] = [
    messages.WorkerReady(),
    messages.Credit(5, 7),
    messages.Tick(
        sent=1,
        tokens=2,
        running=3,
        waiting=4,
        outcomes={RequestOutcome.OK: 5},
        ttft_sum_s=0.5,
        ttft_count=1,
        tpot_sum_s=0.25,
        tpot_count=1,
        lateness_s=b"12345678",
    ),
    messages.RequestEnded(
        RequestRecord(index=1, outcome=RequestOutcome.TRUNCATED, chunk_times=b"12345678", body=b"{}")
    ),
    messages.WorkerDone(health=WorkerHealth(worker=1, cpu_share=0.5), sending_ended_s=1.0, ended_s=2.0),
    messages.WorkerFailed(True, "why"),
]


@pytest.mark.parametrize("message", TO_WORKER, ids=lambda message: type(message).__name__)
def test_to_worker_and_back(message: messages.ToWorker) -> None:
    (body,) = FrameSplitter().feed(frame(message))
    assert to_worker(body) == message


@pytest.mark.parametrize("message", FROM_WORKER, ids=lambda message: type(message).__name__)
def test_from_worker_and_back(message: messages.FromWorker) -> None:
    (body,) = FrameSplitter().feed(frame(message))
    assert from_worker(body) == message


@given(cuts=st.lists(st.integers(0, 2000), max_size=30))
def test_frames_survive_any_cutting(cuts: list[int]) -> None:
    whole = b"".join(frame(message) for message in FROM_WORKER)
    ends = [*sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    splitter, found, at = FrameSplitter(), [], 0
    for end in ends:
        found += [from_worker(body) for body in splitter.feed(whole[at:end])]
        at = end
    assert found == FROM_WORKER


def test_nonsense_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        to_worker(b"\xc1")
    with pytest.raises(msgspec.DecodeError):
        from_worker(frame(messages.Prepare())[4:])
