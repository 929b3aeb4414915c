"""A memory server that stands still: what its clients find, store and wait for, as live clients do.

The live side of the first test is `test_a_frozen_server_costs_one_timeout` in `tests/kvpool/test_client_failures.py`.
"""

import math

from serving.kvpool.core.server_backoff import LAST_PAUSE_S
from tests.virtual.core.memory_case import chain, fill, found, pool_of, run_to

LOOKUP_S, RESERVE_S = 0.5, 2.5
"""Half of `get_timeout_s` and of `put_timeout_s`."""


def test_a_frozen_server_costs_each_client_one_timeout_and_is_used_again_after_it_thaws() -> None:
    pool = pool_of(servers=2)
    fill(pool, 10)
    pool.freeze_server("server-0", 20.0, 24.0)
    blocks = [block for number in range(10) for block in chain(number)]
    theirs = [block for block in blocks if pool._members.ring.primary(block) == "server-1"]

    def asked(now: float, client: int = 1) -> tuple[int, float]:
        answer = pool.lookup_and_hold("default", blocks, client, now)
        pool.release(answer.handle, now)
        return answer.blocks, answer.waited_s

    gap = asked(20.1)[0]
    assert gap < len(theirs)
    assert asked(20.2) == (gap, LOOKUP_S), "a second fetch of the client, while the first one waits"
    assert asked(20.7) == (gap, 0.0), "nobody waits for it again"
    assert asked(20.7, client=2) == (gap, LOOKUP_S), "another client does, once"
    assert found(pool, theirs, 20.8) == len(theirs), "the other server is as good as ever"
    new = chain(99, 40)
    first = pool.store("default", new, 1, 21.0)
    ((reason, lost),) = first.dropped
    assert (reason, first.stored + lost) == ("timeout", 40)
    assert pool.store("default", new, 1, 21.0 + RESERVE_S).dropped == (("unreachable", lost),)
    pool.thaw_server("server-0", 1, 24.0)
    back = next(now / 10 for now in range(240, 300) if asked(now / 10) == (80, 0.0))
    assert back <= 24.0 + LAST_PAUSE_S
    assert asked(back) == (80, 0.0)
    run_to(pool, 40.0)


def test_a_server_that_goes_on_before_the_deadline_is_waited_for() -> None:
    pool = pool_of(servers=2)
    fill(pool, 4)
    pool.freeze_server("server-0", 20.0, 20.3)
    answer = pool.lookup_and_hold("default", chain(0), 1, 20.1)
    assert (answer.blocks, round(answer.waited_s, 6)) == (8, 0.2)
    assert pool.store("default", chain(9), 1, 20.1).stored == 8
    pool.thaw_server("server-0", 1, 20.3)
    pool.release(answer.handle, 20.3)
    assert pool.lookup_and_hold("default", chain(9), 1, 20.3).waited_s == 0.0
    run_to(pool, 30.0)


def test_a_server_that_was_dropped_from_the_view_comes_back_with_its_share_and_its_blocks() -> None:
    pool = pool_of(servers=4, ssd_mib=100, write_through=True)
    fill(pool, 20)
    pool.tick(20.0)
    held = pool.servers()[1].entries
    pool.freeze_server("server-1", 20.0, 30.0)
    run_to(pool, 29.0)
    assert [one.name for one in pool.servers()] == ["server-0", "server-2", "server-3"]
    assert pool.store("default", chain(50), 1, 29.0).stored == 8, "others have its keys"
    pool.thaw_server("server-1", 2, 30.0)
    facts = pool.servers()[1]
    assert (facts.name, facts.weight, facts.entries) == ("server-1", 1.0, held)
    run_to(pool, 60.0)
    assert all(found(pool, chain(number), 60.0) == 8 for number in (*range(20), 50))
    assert not pool._members.silent, "it has new links since it was dropped"


def test_a_frozen_server_may_drain_or_be_replaced() -> None:
    pool = pool_of(servers=2, ssd_mib=100, write_through=True, drain_s=4.0)
    fill(pool, 10)
    run_to(pool, 20.0)
    held = pool.servers()[0].entries
    pool.freeze_server("server-0", 20.0, math.inf)
    pool.lose_server("server-0", 22.0)
    assert not pool.runs("server-0")
    assert pool.add_server(23.0) == "server-0"
    pool.thaw_server("server-0", 1, 24.0)  # that process is gone
    assert (pool.runs("server-0"), pool.servers()[0].entries) == (True, held)
    pool.remove_server("server-0", 30.0)
    pool.freeze_server("server-0", 30.0, 36.0)
    run_to(pool, 36.0)
    pool.thaw_server("server-0", 3, 36.0)
    run_to(pool, 40.0)
    assert [one.name for one in pool.servers()] == ["server-1"], "its time to leave is over"
