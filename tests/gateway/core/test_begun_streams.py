"""A stream that has started waits for a replacement until its own deadline; other requests wait less."""

from serving.gateway.core import events as e
from serving.ids import ReplicaId
from serving.values.news import FailKind, Tokens
from serving.values.orders import Add
from tests.gateway.core.bench import GatewayBench, job

ROLE_WAIT_S = 30.0


def begin(bench: GatewayBench, replica: ReplicaId) -> int:
    """A request for which the instance produces two tokens."""
    number = bench.submit(job(time_left_s=600.0))
    add = bench.sent[replica][-1]
    assert isinstance(add, Add)
    bench.say(replica, Tokens(add.spec.sequence_id, 0, (7, 8), cached_tokens=0))
    return number


def look_until(bench: GatewayBench, now: float) -> None:
    """Advance the time in steps of a second."""
    while bench.now < now:
        bench.look_at(min(now, bench.now + 1.0))


def test_a_begun_stream_outlasts_role_wait_s_while_a_replacement_comes() -> None:
    bench = GatewayBench("aggregated", role_wait_s=ROLE_WAIT_S)
    first = bench.up("aggregated")
    begun = begin(bench, first)
    fresh = bench.submit(job())
    bench.tell(e.InstanceDown(first, None))
    look_until(bench, 100.0 + ROLE_WAIT_S + 2.0)
    assert bench.over == [fresh]
    second = bench.up("aggregated", 1)
    look_until(bench, 100.0 + ROLE_WAIT_S + 40.0)
    (again,) = bench.sent[second]
    assert isinstance(again, Add)
    assert again.spec.output == (7, 8)
    assert begun not in bench.over


def test_a_begun_stream_does_not_if_no_replacement_comes() -> None:
    bench = GatewayBench("aggregated", role_wait_s=ROLE_WAIT_S)
    replica = bench.up("aggregated")
    begun = begin(bench, replica)
    bench.tell(e.Expect(coming=False))
    bench.tell(e.InstanceDown(replica, None))
    look_until(bench, 100.0 + ROLE_WAIT_S + 2.0)
    assert bench.over == [begun]
    assert bench.failures[begun].kind is FailKind.UNAVAILABLE
    assert bench.failures[begun].reason.startswith("no prefill instance became available")


def test_a_begun_stream_ends_at_its_own_deadline() -> None:
    bench = GatewayBench("aggregated", role_wait_s=ROLE_WAIT_S)
    replica = bench.up("aggregated")
    begun = begin(bench, replica)
    bench.tell(e.InstanceDown(replica, None))
    look_until(bench, 699.0)
    assert begun not in bench.over
    look_until(bench, 701.0)
    assert bench.failures[begun].kind is FailKind.DEADLINE
