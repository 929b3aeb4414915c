"""The engine with a KV-cache pool: its lookups, its waits, its offers."""

import pytest
from msgspec import structs

from serving.errors import LedgerError
from serving.ids import SequenceId
from serving.instance.core.events import EngineMessage
from serving.instance.core.settings import EngineRole
from serving.values.news import Tokens
from serving.values.pool_outcome import FetchReport, MissReason
from serving.values.prefix_hash import prefix_hashes
from serving.values.sequence import PoolUse
from tests.fakes.executor import reference_output
from tests.fakes.pool import FakePool
from tests.instance.bench import PROMPT, spec, ticket_for
from tests.instance.pool_bench import PoolBench

A = SequenceId("a")


def test_a_prompt_is_looked_up_before_it_is_computed() -> None:
    bench = PoolBench()
    bench.engine.add(spec("a"), 0.0)
    action = bench.act()
    assert action.plan is None
    (order,) = bench.fetches
    assert (order.sequence_id, order.namespace, order.hashes) == (A, "default", prefix_hashes(PROMPT, 4)[:2])
    assert len(order.blocks) == 2
    snapshot = bench.engine.snapshot(0.0)
    assert (snapshot.fetching, snapshot.queued_tokens, snapshot.has_work) == (1, 10, False)
    assert bench.act().plan is None, "it waits for the pool"
    bench.fetch()
    plan = bench.act().plan
    assert plan is not None
    assert plan.sequences[0].start == 0


def test_what_one_instance_stored_another_one_pulls() -> None:
    pool = FakePool()
    first, second = PoolBench(pool), PoolBench(pool)
    first.engine.add(spec("a"), 0.0)
    told = first.finish()
    assert (told[0].cached_tokens, told[0].pool) == (0, PoolUse())
    second.engine.add(spec("a"), 0.0)
    again = second.finish()
    assert (again[0].cached_tokens, again[0].pool) == (8, PoolUse(pulled_tokens=8))
    assert [t for e in again for t in e.tokens] == list(reference_output(spec("a"))[0])
    assert second.engine.snapshot(0.0).pulled_tokens_total == 8
    assert second.engine.snapshot(0.0).prompt_tokens_total == 2


def test_what_came_from_the_pool_or_is_cached_here_is_not_stored_again() -> None:
    pool = FakePool()
    first, second = PoolBench(pool), PoolBench(pool)
    first.engine.add(spec("a"), 0.0)
    first.finish()
    second.engine.add(spec("b", max_tokens=1), 0.0)
    second.act()
    second.fetch()
    plan = second.act().plan
    assert plan is not None
    second.engine.step_finished(second.executor.execute(plan), 0.0)
    second.act()
    assert second.stores == []
    second.engine.add(spec("c", max_tokens=1), 0.0)
    action = second.act()
    assert (action.fetches, second.fetches) == ((), []), "all of it is cached here"
    assert action.plan is not None
    assert action.plan.sequences[0].start == 8
    second.engine.step_finished(second.executor.execute(action.plan), 0.0)
    second.act()
    assert second.stores == []
    assert second.engine.take_events()[-1] == Tokens(
        SequenceId("c"), 0, reference_output(spec("c", max_tokens=1))[0], (), (), 8,
        reference_output(spec("c", max_tokens=1))[1], PoolUse(), None, 0.0,
    )  # fmt: skip


def test_blocks_that_the_pool_lost_are_computed_and_told() -> None:
    pool = FakePool()
    first, second = PoolBench(pool), PoolBench(pool)
    first.engine.add(spec("a"), 0.0)
    first.finish()
    second.engine.add(spec("a"), 0.0)
    second.act()
    second.cache.lose_after = 1
    assert second.fetch().reason is MissReason.CHECKSUM
    told = second.finish()
    assert (told[0].cached_tokens, told[0].pool) == (4, PoolUse(4, 4, "checksum"))
    assert [t for e in told for t in e.tokens] == list(reference_output(spec("a"))[0])


def test_namespaces_go_with_the_orders() -> None:
    bench = PoolBench()
    bench.engine.add(structs.replace(spec("a"), namespace="acme", salt=b"s"), 0.0)
    bench.finish()
    assert {namespace for namespace, _ in bench.cache.pool.blocks} == {"acme"}
    assert {h for _, h in bench.cache.pool.blocks} >= set(prefix_hashes(PROMPT, 4, b"s"))


def test_generated_tokens_are_stored_only_if_the_setting_says_so() -> None:
    for decoded, blocks in ((True, 3), (False, 2)):
        bench = PoolBench(store_decoded=decoded)
        bench.engine.add(spec("a"), 0.0)
        bench.finish()
        assert len(bench.cache.pool.blocks) == blocks


def test_a_decode_instance_stores_only_what_it_generated() -> None:
    bench = PoolBench(role=EngineRole.DECODE)
    one = spec("a", output=(reference_output(spec("a"))[0][0],))
    bench.engine.adopt(one, ticket_for(one), 0.0)
    (order,) = bench.act().pulls
    bench.executor.arena[order.blocks[0]][:] = PROMPT[:4]
    bench.executor.arena[order.blocks[1]][:] = PROMPT[4:8]
    bench.executor.arena[order.blocks[2]][:2] = PROMPT[8:]
    bench.engine.pull_finished(A, None, 0, 0.0)
    bench.finish()
    known = prefix_hashes([*PROMPT, *reference_output(spec("a"))[0]], 4)
    assert set(bench.cache.pool.blocks) == {("default", known[2])}


def test_blocks_beyond_the_bound_are_not_stored_and_nobody_waits() -> None:
    for bound in (0, 1):
        bench = PoolBench(max_store_blocks=bound)
        bench.engine.add(spec("a"), 0.0)
        bench.act()
        bench.fetch()
        plan = bench.act().plan
        assert plan is not None
        bench.engine.step_finished(bench.executor.execute(plan), 0.0)
        assert bench.act().plan is not None, "decoding goes on"
        assert [order.hashes for order in bench.stores] == [prefix_hashes(PROMPT, 4)[:1]][:bound]
        snapshot = bench.engine.snapshot(0.0)
        assert (snapshot.storing_blocks, snapshot.unstored_blocks_total) == (bound, 2 - bound)


def test_blocks_are_pinned_until_they_are_stored() -> None:
    bench = PoolBench()
    bench.engine.add(spec("a", max_tokens=1), 0.0)
    bench.act()
    bench.fetch()
    plan = bench.act().plan
    assert plan is not None
    bench.engine.step_finished(bench.executor.execute(plan), 0.0)
    bench.act()
    assert bench.engine.idle()
    assert (bench.used, bench.engine.snapshot(0.0).storing_blocks) == (2, 2)
    bench.store()
    assert (bench.used, bench.engine.snapshot(0.0).storing_blocks) == (0, 0)


def test_an_engine_that_leaves_stores_what_it_skipped_and_lets_its_streams_grow_meanwhile() -> None:
    """The engine pinned all blocks at once: a running stream was preempted, and paused until all were stored."""
    bench = PoolBench(max_store_blocks=1)
    prompts = {f"old{i}": tuple(range(100 * i, 100 * i + 16)) for i in range(6)}
    for name, prompt in prompts.items():
        bench.engine.add(spec(name, prompt, max_tokens=1), 0.0)
        bench.finish()
    bench.engine.add(spec("run", tuple(range(900, 908)), max_tokens=50), 0.0)
    bench.act()
    bench.fetch()
    bench.engine.drain()
    events: list[EngineMessage] = []
    for _ in range(60):  # no block is stored for this long
        plan = bench.act().plan
        if plan is not None:
            bench.engine.step_finished(bench.executor.execute(plan), 0.0)
        events += bench.engine.take_events()
    assert sum(len(event.tokens) for event in events if isinstance(event, Tokens)) == 50
    snapshot = bench.engine.snapshot(0.0)
    assert (snapshot.preemptions_total, bench.engine.idle()) == (0, True)
    assert snapshot.storing_blocks > 1, "half of what is free"
    while bench.engine.snapshot(0.0).storing_blocks:
        bench.store()
        bench.act()
    old = {("default", one) for prompt in prompts.values() for one in prefix_hashes(prompt, 4)}
    assert len(old & bench.cache.pool.blocks.keys()) > 16, "of 24: the stream needed the blocks of some"


def test_prompts_are_fetched_ahead_of_their_step() -> None:
    bench = PoolBench(max_waiting=10, max_sequences=10, max_step_tokens=10)
    for name in "abcd":
        bench.engine.add(spec(name, tuple(range(ord(name), ord(name) + 10))), 0.0)
    bench.act()
    assert [o.sequence_id for o in bench.fetches] == ["a", "b"], "the running step's tokens and the next one's"
    bench.fetch()
    bench.fetch()
    plan = bench.act().plan
    assert plan is not None
    assert [s.sequence_id for s in plan.sequences] == ["a"]
    assert bench.fetches == []
    bench.engine.step_finished(bench.executor.execute(plan), 0.0)
    assert bench.act().plan is not None
    assert [o.sequence_id for o in bench.fetches] == ["c"]


def test_who_left_while_being_fetched_takes_no_room_from_who_comes() -> None:
    """The instance looked loaded, and prefetched nothing until the last fetch of a cancelled request had ended."""
    bench = PoolBench(max_step_tokens=8)
    for name in "ab":
        bench.engine.add(spec(name, tuple(range(ord(name), ord(name) + 30))), 0.0)
    bench.act()
    assert len(bench.fetches) == 2
    for name in "ab":
        bench.engine.cancel(SequenceId(name), 0.0)
    for name in "cd":
        bench.engine.add(spec(name, tuple(range(ord(name), ord(name) + 10))), 0.0)
    bench.act()
    assert [order.sequence_id for order in bench.fetches] == ["a", "b", "c", "d"]


def test_orders_end_once() -> None:
    bench = PoolBench()
    with pytest.raises(LedgerError, match="unknown sequence"):
        bench.engine.fetch_finished(A, FetchReport(0), 0.0)
    bench.engine.add(spec("a"), 0.0)
    with pytest.raises(LedgerError, match="not being fetched"):
        bench.engine.fetch_finished(A, FetchReport(0), 0.0)
    with pytest.raises(LedgerError, match="store order 7"):
        bench.engine.store_finished(7, 0.0)


def test_a_prompt_behind_a_fetch_and_a_handoff_is_computed_at_once() -> None:
    """It waited until one of the two had arrived, and no prompt was computed in between."""
    bench = PoolBench(role=EngineRole.DECODE)
    handed = spec("handed", output=(1,), max_tokens=9)
    bench.engine.add(spec("fetched", tuple(range(20, 30))), 0.0)
    bench.engine.adopt(handed, ticket_for(handed), 0.0)
    bench.engine.add(spec("short", (1, 2, 3)), 0.0)
    action = bench.act()
    assert [order.sequence_id for order in action.fetches] == ["fetched"]
    assert [order.sequence_id for order in action.pulls] == ["handed"]
    assert action.plan is not None
    assert [step.sequence_id for step in action.plan.sequences] == ["short"]


def test_a_prompt_queued_behind_a_long_one_is_looked_up_and_computed_while_that_one_is_fetched() -> None:
    """It waited for the fetch of the other one, and no prompt was computed in between."""
    bench = PoolBench(max_step_tokens=8, max_waiting=9)
    bench.engine.add(spec("long", tuple(range(100, 130))), 0.0)
    bench.engine.add(spec("short"), 0.0)
    bench.act()
    assert [order.sequence_id for order in bench.fetches] == ["long", "short"]
    bench.fetches.reverse()
    bench.fetch()
    plan = bench.act().plan
    assert plan is not None
    assert [step.sequence_id for step in plan.sequences] == ["short"]


def test_a_prompt_that_needs_no_fetch_is_computed_while_those_before_it_are_fetched() -> None:
    """It waited for their fetches: the budget of prefetched tokens was used up."""
    bench = PoolBench(max_step_tokens=8, max_waiting=9)
    bench.engine.add(spec("cached"), 0.0)
    bench.finish()
    for name in ("long", "longer"):
        bench.engine.add(spec(name, tuple(range(ord(name[-1]), ord(name[-1]) + 30))), 0.0)
    bench.engine.add(spec("again", max_tokens=1), 0.0)
    bench.engine.add(spec("short", (1, 2, 3)), 0.0)
    plan = bench.act().plan
    assert [order.sequence_id for order in bench.fetches] == ["long", "longer"]
    assert plan is not None
    assert [step.sequence_id for step in plan.sequences] == ["again", "short"]


def test_a_prompt_that_must_be_fetched_beyond_the_room_ahead_is_not_overtaken() -> None:
    bench = PoolBench(max_step_tokens=8, max_waiting=9)
    for first in (100, 200, 300):
        bench.engine.add(spec(f"long{first}", tuple(range(first, first + 30))), 0.0)
    bench.engine.add(spec("short", (1, 2, 3)), 0.0)
    assert bench.act().plan is None
    assert [order.sequence_id for order in bench.fetches] == ["long100", "long200"]
