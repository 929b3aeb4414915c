"""One gateway's core, in situations that a real instance does not produce on demand."""

from collections.abc import Iterator
from itertools import count
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from serving.gateway.core import events as e
from serving.gateway.core.gateway_admission import AdmissionLimits
from serving.gateway.core.journal_commands import LATER_S
from serving.gateway.core.request_journal import SequenceJournal
from serving.ids import ReplicaId
from serving.values.jobs import Fail
from serving.values.news import FailKind, Leaving, Refused, Tokens
from serving.values.orders import Add, Adopt, Cancel, Release
from tests.gateway.core.bench import IDLE, GatewayBench, ended, job


def limits(**changes: int) -> AdmissionLimits:
    """Limits of the queue."""
    return replace(AdmissionLimits(512, 1_000_000, 256), **changes)


def refuse(bench: GatewayBench, replica: ReplicaId, says: Iterator[float]) -> None:
    """The instance is full, for the last command and every later one."""
    asked = 0
    while len(bench.sent[replica]) > asked:
        asked, order = len(bench.sent[replica]), bench.sent[replica][-1]
        assert isinstance(order, Add | Adopt)
        bench.say(replica, Refused(order.spec.sequence_id, FailKind.OVERLOADED, "256 sequences wait", next(says)))


def test_a_gateway_that_was_stopped_looks_for_an_instance_before_it_gives_up() -> None:
    bench = GatewayBench("aggregated")
    replica = bench.up("aggregated")
    bench.now = 105.0  # the instance has been silent for too long
    number = bench.submit(job())
    bench.look_at(106.0)
    assert not bench.sent[replica]
    bench.now = 150.0
    bench.tell(e.InstanceStatus(replica, IDLE))  # stopped until now; events that arrived since are read first
    bench.look_at(150.0)
    assert [type(order) for order in bench.sent[replica]] == [Add]
    assert number not in bench.over


def test_a_choice_that_is_stopped_while_its_handoff_waits_no_longer_asks_for_an_instance() -> None:
    bench = GatewayBench()
    prefill = bench.up("prefill")
    number = bench.submit(job(2))
    for place, add in enumerate(list(bench.sent[prefill])):
        bench.hand_over(prefill, add, f"t{place}")
    assert bench.core.starved(bench.now)
    bench.tell(e.StopChoice(number, 0))
    decode = bench.up("decode")
    bench.look_at(101.0)
    assert [type(order) for order in bench.sent[decode]] == [Adopt], "the other choice goes on"
    assert not bench.core.starved(bench.now)


def test_a_request_that_every_instance_refuses_is_told_what_they_say_of_when_to_come_back() -> None:
    """The client got one second, whatever the instances reported."""
    bench = GatewayBench("aggregated")
    replica = bench.up("aggregated")
    number = bench.submit(job())
    refuse(bench, replica, iter((9.0, 7.0, 8.0)))
    assert bench.failures[number].kind is FailKind.OVERLOADED
    assert bench.retry_after_s[number] == 7.0


def test_a_stream_whose_decode_instances_are_full_waits_until_one_is_not() -> None:
    """It retried three times within a millisecond, and the client got 429 in mid-stream."""
    bench = GatewayBench()
    prefill, decode = bench.up("prefill"), bench.up("decode")
    number = bench.submit(job())
    bench.hand_over(prefill, bench.sent[prefill][0])
    refuse(bench, decode, count(1.0))
    assert len(bench.sent[decode]) == 2, "once, and once more when there was no other"
    assert number not in bench.over
    bench.look_at(100.0 + LATER_S - 0.01)
    assert len(bench.sent[decode]) == 2, "it gives them time"
    bench.look_at(100.0 + LATER_S)
    bench.say(decode, ended(bench.sent[decode][-1], 1, 8))
    assert bench.tokens(number) == [(0, 7), (0, 8)]
    assert bench.counts() == (0, 0, 0)


def test_a_choice_that_all_instances_refuse_waits_once_another_choice_is_streamed() -> None:
    """The whole request failed with 429 in mid-stream because one of its choices found no capacity."""
    bench = GatewayBench("aggregated")
    replica = bench.up("aggregated")
    number = bench.submit(job(2))
    one, _ = bench.sent[replica]
    assert isinstance(one, Add)
    bench.say(replica, Tokens(one.spec.sequence_id, 0, (7,), cached_tokens=0))
    refuse(bench, replica, count(1.0))
    assert number not in bench.over
    bench.look_at(100.0 + LATER_S)
    bench.say(replica, ended(one, 1, 8), ended(bench.sent[replica][-1], 0, 9))
    assert bench.tokens(number) == [(0, 7), (0, 8), (1, 9)]
    assert bench.counts() == (0, 0, 0)


def test_a_request_that_meets_one_leaving_instance_after_the_other_is_not_taken_for_the_cause() -> None:
    """It was sent before the gateway learned of the drain, and the refusal was lost as the link closed."""
    bench = GatewayBench("aggregated")
    replica = bench.up("aggregated")
    number = bench.submit(job())
    for _ in range(6):
        assert isinstance(bench.sent[replica][-1], Add)
        bench.tell(e.InstanceDown(replica, still_since=0.0))
        bench.up("aggregated")
        bench.look_at(bench.now + 1.0)
    assert len(bench.sent[replica]) == 7
    bench.say(replica, ended(bench.sent[replica][-1], 0, 8))
    assert [update.resumptions for update in bench.updates[number]] == [0]


def test_tokens_without_some_experts_are_added_up_over_instances() -> None:
    bench = GatewayBench("aggregated")
    first = bench.up("aggregated")
    number = bench.submit(job())
    (add,) = bench.sent[first]
    assert isinstance(add, Add)
    bench.say(first, Tokens(add.spec.sequence_id, 0, (7,), cached_tokens=0, masked=5))
    second = bench.up("aggregated", 1)
    bench.tell(e.InstanceDown(first, still_since=0.0))
    bench.say(second, replace(ended(bench.sent[second][-1], 1, 8), masked=1))
    assert [update.masked for update in bench.updates[number]] == [5, 6]


@pytest.mark.parametrize(("tokens", "pool"), [(20 * 16 - 5, "prefill"), (20 * 16 - 4, "decode")])
def test_a_stream_that_outgrew_the_prefill_instances_goes_on_at_a_decode_instance(tokens: int, pool: str) -> None:
    """The prefill instance refused it as too long: an error about the prompt length in mid-stream."""
    bench = GatewayBench()
    first = bench.up("prefill", kv_blocks=20)
    bench.submit(job(max_tokens=9999))
    (add,) = bench.sent[first]
    assert isinstance(add, Add)
    bench.say(first, Tokens(add.spec.sequence_id, 0, tuple(range(tokens)), cached_tokens=0))
    others = {"prefill": bench.up("prefill", 1, kv_blocks=20), "decode": bench.up("decode")}
    bench.tell(e.InstanceDown(first, None))
    assert bench.routed[-1].decision.replica == others[pool], "a prefill instance holds two more, or none"


@pytest.mark.parametrize(
    ("room", "max_tokens", "pool"),
    [(2, 9999, "prefill"), (1, 9999, "decode"), (1, 1, "prefill"), (0, 1, "decode"), (-100, 9999, "decode")],
)
def test_a_prompt_that_no_prefill_instance_can_hand_on_is_computed_where_it_goes_on(
    room: int, max_tokens: int, pool: str
) -> None:
    """A prompt with space for one more token ended with that token; a longer one was refused."""
    bench = GatewayBench()
    replicas = {"prefill": bench.up("prefill", kv_blocks=20), "decode": bench.up("decode")}
    bench.submit(job(max_tokens=max_tokens, prompt=range(20 * 16 - room)))
    assert [one.decision.replica for one in bench.routed] == [replicas[pool]]


def test_an_instance_that_is_too_small_for_one_prompt_is_still_known_for_the_others() -> None:
    """A long prompt that it could not take made the gateway forget all prefixes of that instance."""
    bench = GatewayBench(history_blocks=100, rule="locality")

    def reason(blocks: int) -> str:
        bench.submit(job(prompt=range(blocks * 16), max_tokens=9))
        return bench.routed[-1].decision.reason

    small = bench.up("prefill", kv_blocks=20)
    assert reason(4).startswith("0 of 4 blocks")
    bench.up("decode")
    assert reason(40).startswith("0 of 40 blocks"), "decode computes it"
    assert reason(4).startswith("4 of 4 blocks")
    bench.tell(e.InstanceDown(small, None))
    bench.up("prefill", kv_blocks=20)
    assert reason(4).startswith("0 of 4 blocks")


def test_a_prompt_that_fills_every_instance_is_computed_all_the_same() -> None:
    bench = GatewayBench()
    prefill, _ = bench.up("prefill", kv_blocks=20), bench.up("decode", kv_blocks=20)
    bench.submit(job(max_tokens=9, prompt=range(20 * 16 - 1)))
    assert [one.decision.replica for one in bench.routed] == [prefill]


def test_a_choice_that_has_ended_holds_no_place_and_no_room_until_the_others_end() -> None:
    """Both were held for the whole request: others waited for unused capacity."""
    bench = GatewayBench(limits=limits(max_running_sequences=2, max_queued_requests=1))
    prefill, decode = bench.up("prefill"), bench.up("decode")
    first = bench.submit(job(2, max_tokens=64))
    for place, add in enumerate(list(bench.sent[prefill])):
        bench.hand_over(prefill, add, f"t{place}")
    assert bench.core.routes.promised(decode) == 2 * 4
    other = bench.submit(job())
    assert bench.counts() == (1, 1, 2)
    assert bench.core.room.tokens == 3
    bench.say(decode, ended(bench.sent[decode][0], 1, 8))
    assert bench.counts() == (2, 0, 2)
    assert bench.core.routes.promised(decode) == 4
    bench.tell(e.StopChoice(first, 1))
    assert bench.over == [first]
    assert [type(order) for order in bench.sent[decode]] == [Adopt, Adopt, Cancel]
    assert bench.counts() == (1, 0, 1)
    bench.tell(e.CancelJob(other))
    assert bench.counts() == (0, 0, 0)
    assert bench.core.routes.promised(decode) == 0


@pytest.mark.parametrize("met", ["start", "on_instance_event", "instance_lost"])
def test_a_bug_that_a_job_meets_ends_that_job_alone(met: str) -> None:
    """Its request stayed open for its whole time limit, and a later request got the failure."""
    bench = GatewayBench("aggregated")
    right = getattr(SequenceJournal, met)

    def fails(journal: SequenceJournal, *args: object, **kwargs: object) -> object:
        if journal.spec.prompt == (9,):
            raise ZeroDivisionError
        return right(journal, *args, **kwargs)

    with patch.object(SequenceJournal, met, fails):
        broken, other = bench.submit(job(prompt=(9,))), bench.submit(job())
        replica = bench.up("aggregated")
        bench.look_at(101.0)
        if met == "on_instance_event":
            for order in list(bench.sent[replica]):
                assert isinstance(order, Add)
                bench.say(replica, Tokens(order.spec.sequence_id, 0, (7,), cached_tokens=0))
        elif met == "instance_lost":
            bench.tell(e.InstanceDown(replica, None))
    assert [one.number for one in bench.broken] == [broken]
    trace = bench.broken[0].trace
    assert trace.startswith("ZeroDivisionError: ")
    assert "gateway.py" in trace
    assert "/" not in trace, "a log of another installation replays here"
    assert bench.failures == {broken: Fail(FailKind.ENGINE, "the gateway failed on it")}
    assert bench.over == [broken]
    bench.tell(e.CancelJob(other))
    assert bench.counts() == (0, 0, 0)


def test_a_request_that_fits_no_frame_is_told_what_helps() -> None:
    """The client was told that the gateway had failed."""
    bench = GatewayBench()
    prefill, decode = bench.up("prefill"), bench.up("decode")
    number = bench.submit(job())
    bench.hand_over(prefill, bench.sent[prefill][0])
    (adopt,) = bench.sent[decode]
    assert isinstance(adopt, Adopt)
    bench.tell(e.TooLarge(adopt.spec.sequence_id, "send a shorter one"))
    assert bench.failures[number] == Fail(FailKind.INVALID, "send a shorter one")
    assert bench.tokens(number) == [(0, 7)]
    assert bench.sent[decode][1:] == [Cancel(adopt.spec.sequence_id)], "of what never came"
    assert bench.sent[prefill][1:] == [Release("t")]
    assert bench.counts() == (0, 0, 0)


def test_an_order_that_could_not_be_sent_goes_elsewhere() -> None:
    bench = GatewayBench("aggregated")
    replicas = [bench.up("aggregated", place) for place in range(2)]
    bench.submit(job())
    (first,) = [replica for replica in replicas if bench.sent[replica]]
    (add,) = bench.sent[first]
    assert isinstance(add, Add)
    bench.tell(e.Unsent(first, add.spec.sequence_id))
    bench.tell(e.Unsent(first, add.spec.sequence_id))  # which it has received by now
    assert [len(bench.sent[replica]) for replica in replicas] == [1, 1]


def test_a_handoff_goes_only_where_it_can_ever_fit() -> None:
    """It was sent to the decode instance with most free blocks, refused as too long, and ended in mid-stream."""
    bench = GatewayBench()
    prefill, small = bench.up("prefill"), bench.up("decode", kv_blocks=20)
    bench.submit(job(max_tokens=9999, prompt=range(20 * 16 - 1)))
    bench.hand_over(prefill, bench.sent[prefill][0])
    assert not bench.sent[small]
    large = bench.up("decode", 1, status=replace(IDLE, blocks_free=10))
    bench.look_at(101.0)
    assert [type(order) for order in bench.sent[large]] == [Adopt]
    assert not bench.sent[small]


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
def test_waiting_in_the_instance_counts_as_queueing(mode: str) -> None:
    """A loaded instance's queue was counted as compute time of the prompt, and queueing as zero."""
    pools = ("aggregated",) if mode == "aggregated" else ("prefill", "decode")
    bench = GatewayBench(*pools)
    replica, *_ = [bench.up(pool) for pool in pools]
    number = bench.submit(job())
    (add,) = bench.sent[replica]
    assert isinstance(add, Add)
    if mode == "aggregated":
        bench.say(replica, Tokens(add.spec.sequence_id, 0, (7,), cached_tokens=0, waited_s=30.0))
    else:
        bench.hand_over(replica, add, waited_s=30.0)
    assert [update.queue_s for update in bench.updates[number]] == [30.0]


def test_news_of_a_job_that_is_over_are_declined() -> None:
    bench = GatewayBench()
    prefill = bench.up("prefill")
    number = bench.submit(job())
    add = bench.sent[prefill][0]
    bench.tell(e.CancelJob(number))
    bench.hand_over(prefill, add, "late")
    assert isinstance(add, Add)
    name = add.spec.sequence_id
    bench.say(prefill, Tokens(name, 1, (8,)), Leaving(name, handoff=False), ended(add, 2, 9))
    assert bench.sent[prefill][1:] == [Cancel(name), Release("late"), Cancel(name), Cancel(name)]


def test_all_are_told_that_the_gateway_leaves() -> None:
    bench = GatewayBench("aggregated", limits=limits(max_running_sequences=1))
    replica = bench.up("aggregated")
    numbers = [bench.submit(job()) for _ in range(3)]
    assert bench.counts() == (1, 2, 1)
    bench.tell(e.EndAll("the server is shutting down"))
    gone = Fail(FailKind.UNAVAILABLE, "the server is shutting down")
    assert bench.failures == dict.fromkeys(numbers, gone)
    assert [type(order) for order in bench.sent[replica]] == [Add, Cancel], "none takes the place of one that was ended"
    assert bench.counts() == (0, 0, 0)


def test_other_limits_hold_at_once_and_what_waits_stays() -> None:
    bench = GatewayBench("aggregated", limits=limits(max_running_sequences=1, max_queued_requests=1))
    replica = bench.up("aggregated")
    first, second, third = bench.submit(job()), bench.submit(job()), bench.submit(job())
    assert len(bench.sent[replica]) == 1
    assert third in bench.rejected
    bench.tell(e.Configure(limits(max_running_sequences=2, max_queued_requests=2), 3, 30.0, 5.0))
    bench.look_at(101.0)
    assert len(bench.sent[replica]) == 2, "the second has a seat now"
    fourth = bench.submit(job())
    assert not {first, second, fourth} & set(bench.rejected)
    bench.tell(e.Configure(limits(max_running_sequences=2, max_queued_requests=0), 3, 0.0, 5.0))
    assert bench.core.room.find(fourth) is not None
    assert bench.submit(job()) in bench.rejected
