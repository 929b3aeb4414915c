"""A draining engine hands its sequences on; sequences without a taker continue. Token-exact, without leaks."""

import pytest
from msgspec import structs

from serving.ids import ReplicaId, SequenceId
from serving.instance.core.events import HandoffClosed, HandoffReady
from serving.instance.core.settings import EngineRole
from serving.values.news import Adopted, FailKind, Leaving, Lost, Refused, Tokens
from serving.values.sequence import HandoffTicket, SequenceSpec
from tests.fakes.executor import reference_output
from tests.fakes.transport import FakeFabric, FakeTransport
from tests.instance.bench import PROMPT, Bench, spec
from tests.instance.cluster import Cluster
from tests.instance.pool_bench import PoolBench
from tests.instance.random_requests import assert_exact, pools

A = SequenceId("a")


def handoff(bench: Bench) -> HandoffReady:
    """The one handoff among the events."""
    (event,) = [e for e in bench.engine.take_events() if isinstance(e, HandoffReady)]
    return event


def ticket_from(bench: Bench, event: HandoffReady) -> HandoffTicket:
    """The ticket that a driver makes of it."""
    transport = FakeTransport(FakeFabric(), ReplicaId("self"), bench.executor)
    ticket = transport.register(event.ticket_id, event.blocks, event.hashes, event.computed_tokens)
    return structs.replace(ticket, drafts=event.drafts)


def decoding() -> tuple[Bench, SequenceSpec, list[int]]:
    """A bench with a stream that has produced some tokens."""
    bench, one = Bench(), spec("a", max_tokens=12)
    bench.engine.add(one, 0.0)
    told: list[int] = []
    for _ in range(4):
        told += [t for e in bench.step() if isinstance(e, Tokens) for t in e.tokens]
    assert told
    return bench, one, told


def test_a_stream_is_held_at_the_next_boundary() -> None:
    bench, one, told = decoding()
    bench.engine.move_out(0.0)
    assert bench.begin() is None
    event = handoff(bench)
    news = event.first
    assert (news.position, news.tokens) == (len(told), ())
    assert event.computed_tokens == len(PROMPT) + len(told) - 1
    assert bench.engine.snapshot(0.0).held == 1
    refused = bench.engine.add(spec("b"), 0.0)
    assert isinstance(refused, Refused)
    assert refused.kind is FailKind.DRAINING
    bench.engine.release(event.ticket_id, 0.0)
    assert bench.engine.idle()
    assert bench.used == 0
    assert one.sequence_id == A


def test_what_a_step_gives_is_told_before_the_stream_is_held() -> None:
    bench, _, told = decoding()
    plan = bench.begin()
    assert plan is not None
    bench.engine.move_out(0.0)
    bench.engine.step_finished(bench.executor.execute(plan), 0.0)
    assert bench.begin() is None
    tokens, held = bench.engine.take_events()
    assert isinstance(tokens, Tokens)
    assert isinstance(held, HandoffReady)
    assert held.first.position == tokens.position + len(tokens.tokens) == len(told) + 1


def test_a_held_stream_is_taken_back_without_a_pull() -> None:
    bench, one, told = decoding()
    bench.engine.move_out(0.0)
    bench.begin()
    event = handoff(bench)
    ticket, used = ticket_from(bench, event), bench.used
    again = structs.replace(one, sequence_id=SequenceId("a@2"), output=tuple(told))
    bench.engine.adopt(again, ticket, 0.0)
    third = SequenceId("a@3")
    lost = bench.engine.adopt(structs.replace(again, sequence_id=third), ticket, 0.0)
    assert lost == Lost(third, "a is already being taken back")
    action = bench.engine.next_action(0.0)
    assert action.pulls == ()
    assert action.plan is not None, "it is in the very next step"
    assert bench.used == used, "the blocks have changed hands"
    bench.engine.step_finished(bench.executor.execute(action.plan), 0.0)
    closed, adopted, tokens = bench.engine.take_events()
    assert isinstance(closed, HandoffClosed)
    assert (closed.sequence_id, type(adopted)) == (A, Adopted)
    assert isinstance(tokens, Tokens)
    told += tokens.tokens
    while not bench.engine.idle():
        told += [t for e in bench.step() if isinstance(e, Tokens) for t in e.tokens]
    assert tuple(told) == reference_output(one)[0]
    assert bench.used == 0


def test_what_is_taken_back_with_more_tokens_than_were_held_has_room_for_them() -> None:
    """It computed them beyond the end of its block table: the step failed with its whole batch."""
    bench, one, told = decoding()
    bench.engine.move_out(0.0)
    bench.begin()
    ticket = ticket_from(bench, handoff(bench))
    output = reference_output(one)[0]
    ahead = structs.replace(one, sequence_id=SequenceId("a@2"), output=output[: len(told) + 6])
    free = bench.engine.scheduler.blocks.pool.num_free
    taken = bench.engine.scheduler.blocks.pool.allocate(free)
    bench.engine.adopt(ahead, ticket, 0.0)
    assert bench.engine.next_action(0.0).plan is None, "there is no room, and it waits for some"
    bench.engine.scheduler.blocks.pool.release(taken)
    rest: list[int] = []
    while not bench.engine.idle():
        rest += [t for e in bench.step() if isinstance(e, Tokens) for t in e.tokens]
    assert (*ahead.output, *rest) == output
    assert bench.used == 0


def test_a_prefill_engine_decodes_what_it_holds_itself_and_nothing_else() -> None:
    bench, one = Bench(EngineRole.PREFILL), spec("a", max_tokens=9)
    bench.engine.add(one, 0.0)
    (event,) = bench.step()
    assert isinstance(event, HandoffReady)
    ticket = ticket_from(bench, event)
    foreign = structs.replace(ticket, ticket_id="another's")
    again = structs.replace(one, sequence_id=SequenceId("a@2"), output=event.first.tokens)
    lost = bench.engine.adopt(again, foreign, 0.0)
    assert isinstance(lost, Lost)
    assert "accepts no handoffs" in lost.reason
    bench.engine.adopt(again, ticket, 0.0)
    told = list(event.first.tokens)
    while not bench.engine.idle():
        told += [t for e in bench.step() if isinstance(e, Tokens) for t in e.tokens]
    assert tuple(told) == reference_output(one)[0]
    assert bench.used == 0


@pytest.mark.parametrize("priority", [0, 5])
def test_what_is_taken_back_goes_before_those_who_wait_for_its_blocks(priority: int) -> None:
    bench, one = Bench(EngineRole.PREFILL, blocks=12), structs.replace(spec("a", tuple(range(40))), priority=priority)
    bench.engine.add(one, 0.0)
    while not (events := bench.step()):
        pass
    (event,) = events
    assert isinstance(event, HandoffReady)
    bench.engine.add(spec("b", tuple(range(20, 40))), 0.0)
    assert bench.begin() is None, "too few blocks are free"
    again = structs.replace(one, sequence_id=SequenceId("a@2"), output=event.first.tokens)
    bench.engine.adopt(again, ticket_from(bench, event), 1.0)
    plan = bench.begin()
    assert plan is not None
    assert [share.sequence_id for share in plan.sequences] == ["a@2"]


def test_a_lease_that_runs_out_before_the_taking_back() -> None:
    bench, one, told = decoding()
    bench.engine.move_out(0.0)
    bench.begin()
    ticket = ticket_from(bench, handoff(bench))
    bench.engine.adopt(structs.replace(one, sequence_id=SequenceId("a@2"), output=tuple(told)), ticket, 0.0)
    action = bench.engine.next_action(60.0)  # the deadline of the lease comes first
    (closed,) = [e for e in bench.engine.take_events() if isinstance(e, HandoffClosed)]
    assert closed.sequence_id == A
    assert len(action.pulls) == 1, "from itself, as from anybody: checksums tell whether the bytes are still there"
    bench.engine.check()


def test_an_order_may_say_that_a_prefill_engine_goes_on() -> None:
    bench = Bench(EngineRole.PREFILL)
    one = structs.replace(spec("a", max_tokens=9), whole=True)
    bench.engine.add(one, 0.0)
    told: list[int] = []
    while not bench.engine.idle():
        told += [t for e in bench.step() if isinstance(e, Tokens) for t in e.tokens]
    assert tuple(told) == reference_output(one)[0]
    assert bench.engine.snapshot(0.0).handoffs_out_total == 0


def test_prompts_are_offered_and_go_on_until_they_are_cancelled() -> None:
    bench = Bench()
    for name in ("a", "b"):
        bench.engine.add(spec(name, prompt=tuple(range(40)), max_tokens=2), 0.0)
    bench.step()  # a chunk of the first one
    bench.engine.move_out(0.0)
    wishes = [e for e in bench.engine.take_events() if isinstance(e, Leaving)]
    assert wishes == [Leaving(SequenceId(name), handoff=False) for name in ("a", "b")]
    bench.engine.cancel(SequenceId("b"), 0.0)
    ended: list[object] = []
    while not any(isinstance(e, HandoffReady) for e in ended):
        ended += bench.step() or bench.engine.take_events()
    assert [type(e) for e in ended] == [Tokens, HandoffReady], "its prompt done, it is held like the others"


def test_a_handoff_that_is_not_here_yet_is_offered_and_one_that_is_taken_back_is_not() -> None:
    cluster = Cluster(pools(1, 1), 64)
    source = cluster.instances[ReplicaId("prefill#0")].engine
    target = cluster.instances[ReplicaId("decode#0")].engine
    records = [cluster.submit(spec(f"r/{i}", max_tokens=20)) for i in range(12)]
    while len(target.scheduler.waiting) == 0:
        cluster.run()  # eight fit into its batch
    target.move_out(cluster.now)
    offers = [e for e in target.take_events() if isinstance(e, Leaving)]
    assert offers
    assert all(offer.handoff for offer in offers)
    source.move_out(cluster.now)
    cluster.run(100)
    cluster.decode_at_source()
    cluster.run_until_idle()
    for record in records:
        assert_exact(record)
    assert cluster.at_source, "there was no other decode engine"
    target.move_out(cluster.now)
    assert target.take_events() == ()
    cluster.assert_empty()


def test_an_engine_that_drains_stores_what_it_had_no_time_for() -> None:
    bench = PoolBench(max_store_blocks=1)
    bench.engine.add(spec("a", prompt=tuple(range(41)), max_tokens=1), 0.0)
    bench.finish()
    assert bench.engine.snapshot(0.0).unstored_blocks_total > 0
    stored = len(bench.cache.pool.blocks)
    bench.engine.drain()
    assert bench.engine.snapshot(0.0).storing_blocks == 10 - stored
    bench.finish()
    assert len(bench.cache.pool.blocks) == 10
    assert bench.engine.snapshot(0.0).storing_blocks == 0
    bench.engine.drain()
    assert bench.engine.snapshot(0.0).storing_blocks == 0, "once"


def test_what_was_overwritten_since_is_not_stored() -> None:
    bench = PoolBench(max_store_blocks=0, blocks=16)
    bench.engine.add(spec("a", prompt=tuple(range(41)), max_tokens=1), 0.0)
    bench.finish()
    bench.engine.add(spec("b", prompt=tuple(range(100, 141)), max_tokens=1), 0.0)
    bench.finish()
    bench.engine.drain()
    bench.finish()
    assert 10 <= len(bench.cache.pool.blocks) < 20
    assert bench.used == 0
