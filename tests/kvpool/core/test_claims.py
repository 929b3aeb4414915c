"""Claims and hints on one memory server."""

import math
from typing import Any

import pytest

from serving.ids import BlockHash
from serving.kvpool.core.claim_runs import ClaimLimits
from serving.kvpool.core.entry import Space
from serving.kvpool.core.memory_manager import MemoryManager
from serving.kvpool.core.server_settings import ClaimSettings
from serving.values.kv_hints import (
    BlockClaim,
    ClaimedBlocks,
    ClaimKind,
    HintAction,
    HintOutcome,
    HintStatus,
    HintVerb,
)
from tests.kvpool.core.ledger_driver import (
    PAGE,
    SPACE,
    named,
    put,
    small_manager,
    spill_all,
    spills,
    tiers,
    try_reserve,
    with_ssd,
)

OTHER = Space("other", "layout")
PINS = ClaimSettings(pin_share=0.5)


def claim(
    manager: MemoryManager,
    *indices: int,
    now: float = 0.0,
    session: str = "s",
    branch: str = "",
    leaf: str = "turn",
    ttl_s: float = 100.0,
    kind: ClaimKind = ClaimKind.RETAIN,
    space: Space = SPACE,
) -> HintOutcome:
    run = ClaimedBlocks(kind, ttl_s, tuple(named(index) for index in indices))
    return manager.claims.claim(space, BlockClaim(session, branch, leaf, (run,)), now)


def hint(
    manager: MemoryManager,
    verb: HintVerb,
    *indices: int,
    session: str = "s",
    branch: str | None = None,
    now: float = 0.0,
    ttl_s: float = 100.0,
    namespace: str = SPACE.namespace,
) -> HintOutcome:
    hashes: tuple[BlockHash, ...] = tuple(named(index) for index in indices)
    return manager.claims.hint(namespace, HintAction(verb, session, branch, hashes, ttl_s), now)


def full(pages: int = 8, **settings: Any) -> MemoryManager:
    """A server whose pages hold 0, 1, 2, ... in this order of use."""
    manager = small_manager(slabs=pages // 4, **settings)
    put(manager, *range(pages))
    return manager


def replaced(manager: MemoryManager, count: int, now: float = 1.0, first: int = 100) -> list[int]:
    """Entries that leave, in order, when so many new ones come."""
    gone: list[int] = []
    for index in range(first, first + count):
        before = tiers(manager).keys()
        put(manager, index, now=now)
        gone += before - tiers(manager).keys()
    manager.check()
    return gone


def test_claimed_blocks_leave_last_and_the_nearest_deadline_first() -> None:
    manager = full()
    claim(manager, 0, 1, session="late", ttl_s=50.0)
    claim(manager, 2, 3, session="soon", ttl_s=20.0)
    assert replaced(manager, 4) == [4, 5, 6, 7]
    for index in (100, 101, 102, 103):
        manager.lookup(SPACE, [named(index)], 9, 1.0)  # leased: they cannot leave
    assert replaced_while_leased(manager) == [3, 2, 1, 0]
    assert manager.stats().counters.claims_broken == 4


def replaced_while_leased(manager: MemoryManager) -> list[int]:
    gone: list[int] = []
    for index in range(200, 204):
        before = tiers(manager).keys()
        put(manager, index, now=1.0)
        manager.lookup(SPACE, [named(index)], 9, 1.0)
        gone += before - tiers(manager).keys()
    assert try_reserve(manager, 300, now=1.0) == ["full"]  # everything is leased: as without claims
    return gone


def test_an_expired_block_is_ordinary_again_at_its_place() -> None:
    manager = full()
    claim(manager, 0, 1, ttl_s=10.0)
    manager.tick(10.0)
    assert replaced(manager, 3, now=10.0) == [0, 1, 2]
    assert manager.stats().counters.claims_broken == 0


def test_what_a_newer_turn_lacks_leaves_first() -> None:
    manager = full()
    claim(manager, 5, 6, 7, leaf="one")
    claim(manager, 5, leaf="two")
    assert manager.stats().counters.superseded_bytes == 2 * PAGE
    assert replaced(manager, 3) == [7, 6, 0], "the tail of the old turn first, then the oldest"


def test_a_block_that_others_have_used_since_keeps_its_place() -> None:
    manager = full()
    claim(manager, 5, 6, leaf="one", now=1.0)
    manager.release([found.version for found in manager.lookup(SPACE, [named(5)], 9, 2.0) if found], 9, 2.0)
    claim(manager, leaf="two", now=3.0)
    assert replaced(manager, 2, now=3.0) == [6, 0]


def test_a_branch_supersedes_only_its_own_turns_and_one_turn_adds_up() -> None:
    manager = full()
    claim(manager, 0, 1, leaf="one")
    claim(manager, 2, leaf="one")  # the answer of the same turn
    claim(manager, 0, 3, branch="sub", leaf="x")
    assert replaced(manager, 4) == [4, 5, 6, 7]
    (facts,) = manager.claims.sessions(SPACE.namespace, 10, 1.0)
    assert (facts.session, facts.branches, facts.dram_bytes) == ("s", ("", "sub"), 4 * PAGE)
    assert facts.left_s == 99.0


def test_release_ends_claims_and_makes_blocks_the_first_to_leave() -> None:
    manager = full()
    claim(manager, 6, 7, now=1.0)
    assert hint(manager, HintVerb.RELEASE, now=1.0) == HintOutcome(HintStatus.ACCEPTED, 2, 2)
    assert hint(manager, HintVerb.RELEASE, now=1.0).status is HintStatus.MISSING
    assert replaced(manager, 3) == [7, 6, 0]
    assert list(tiers(manager)) == [1, 2, 3, 4, 5, 100, 101, 102], "nothing was deleted"


def test_touch_renews_each_claim_for_its_own_time_up_to_the_limit() -> None:
    manager = full(claims=ClaimSettings(max_ttl_s=30.0))
    claim(manager, 0, ttl_s=10.0, now=0.0)
    for now in (8.0, 16.0, 24.0):
        assert hint(manager, HintVerb.TOUCH, now=now).status is HintStatus.ACCEPTED
    assert manager.claims.sessions(SPACE.namespace, 1, 24.0)[0].left_s == 6.0
    manager.tick(30.0)
    assert replaced(manager, 1, now=30.0) == [0]
    assert hint(manager, HintVerb.TOUCH, session="nobody").status is HintStatus.MISSING


@pytest.mark.parametrize("ttl_s", [0.0, -5.0, math.nan])
def test_a_claim_without_time_claims_nothing(ttl_s: float) -> None:
    manager = full()
    claim(manager, 0, 1, ttl_s=ttl_s, now=1.0)
    manager.tick(1.0)
    assert replaced(manager, 2) == [0, 1]


@pytest.mark.parametrize("ttl_s", [1e9, 1e308, math.inf])
def test_a_very_long_claim_ends_at_the_limit_and_a_clock_jump_ends_all(ttl_s: float) -> None:
    manager = full()
    claim(manager, 0, 1, ttl_s=ttl_s)
    assert manager.next_tick(0.0) == 3600.0
    manager.tick(1e12)
    assert manager.stats().retained_bytes == 0
    assert replaced(manager, 2, now=1e12) == [0, 1]


def test_over_budget_the_own_oldest_claim_is_clipped_never_another_tenants() -> None:
    manager = small_manager(slabs=2)  # 8 pages, of which each may claim half
    put(manager, 0, 1, space=OTHER)
    put(manager, *range(2, 8))
    assert claim(manager, 0, 1, space=OTHER, session="theirs").status is HintStatus.ACCEPTED
    assert claim(manager, 2, 3, session="old").blocks == 2
    assert claim(manager, 4, 5, 6, session="new").status is HintStatus.ACCEPTED
    assert manager.stats().retained_bytes == 6 * PAGE
    outcome = claim(manager, 2, 3, 4, 5, 6, session="newest")
    assert (outcome.status, outcome.blocks, outcome.wanted) == (HintStatus.CLIPPED, 4, 5)
    assert manager.stats().retained_bytes == 6 * PAGE
    assert replaced(manager, 4) == [1, 0, 6, 7], "whose turn it is decides which tenant's block leaves"


def test_limits_of_a_namespace() -> None:
    manager = full()
    manager.claims.set_limits({"tenant": ClaimLimits(retain_bytes=PAGE, max_ttl_s=5.0)})
    assert claim(manager, 0, 1).blocks == 1
    assert manager.claims.sessions("tenant", 1, 0.0)[0].left_s == 5.0
    manager.claims.set_limits({"tenant": ClaimLimits(retain_bytes=0)})
    assert manager.stats().retained_bytes == 0
    manager.check()


def test_sessions_and_branches_are_bounded() -> None:
    manager = full(claims=ClaimSettings(sessions=2, branches=2))
    for index, name in enumerate(["a", "b", "c"]):
        claim(manager, index, session=name)
    for index, branch in enumerate(["x", "y", "z"]):
        claim(manager, 3 + index, session="c", branch=branch)
    assert [one.session for one in manager.claims.sessions("tenant", 9, 0.0)] == ["c", "b"]
    assert manager.claims.sessions("tenant", 1, 0.0)[0].branches == ("y", "z")
    manager.check()


def test_pins_stay_within_their_budget_and_are_claims_beyond_it() -> None:
    manager = full(claims=PINS)
    outcome = claim(manager, 0, 1, 2, 3, 4, kind=ClaimKind.PIN)
    assert (outcome.status, outcome.blocks) == (HintStatus.CLIPPED, 4)
    assert manager.stats().pinned_bytes == 4 * PAGE
    assert manager.stats().retained_bytes == PAGE
    assert replaced(manager, 8)[:4] == [5, 6, 7, 100]
    manager.lookup(SPACE, [view.hash for view in manager.entries()], 9, 2.0)
    assert set(tiers(manager)) >= {0, 1, 2, 3}


def test_pins_without_a_budget_are_only_claims() -> None:
    manager = full()
    outcome = claim(manager, 0, 1, kind=ClaimKind.PIN)
    assert (outcome.status, outcome.blocks, manager.stats().pinned_bytes) == (HintStatus.CLIPPED, 0, 0)
    manager.lookup(SPACE, [named(index) for index in range(2, 8)], 9, 1.0)
    assert replaced(manager, 2) == [1, 100], "no allocation fails because of claims"


def test_hints_never_reach_another_namespace() -> None:
    manager = full()
    claim(manager, 0, 1)
    for verb in HintVerb:
        assert hint(manager, verb, namespace="other").status is HintStatus.MISSING
        assert hint(manager, verb, 0, 1, namespace="other").status is HintStatus.MISSING
    assert manager.stats().retained_bytes == 2 * PAGE
    assert manager.claims.sessions("other", 9, 0.0) == ()


def test_named_blocks_can_be_claimed_and_released() -> None:
    manager = full()
    assert hint(manager, HintVerb.RETAIN, 0, 1, 50, session="").blocks == 2
    assert replaced(manager, 1) == [2]
    assert hint(manager, HintVerb.RELEASE, 1, session="").blocks == 1
    assert replaced(manager, 2, first=200) == [1, 3]


def test_a_deleted_namespace_has_no_sessions() -> None:
    manager = full()
    claim(manager, 0)
    manager.delete_namespace(SPACE.namespace, 1.0)
    assert manager.claims.sessions(SPACE.namespace, 9, 1.0) == ()
    manager.check()


# With SSD


def test_demote_copies_first_and_frees_the_memory_after_that() -> None:
    manager = with_ssd()
    put(manager, 0, 1)
    hint(manager, HintVerb.RETAIN, 0, 1)
    assert hint(manager, HintVerb.DEMOTE).status is HintStatus.ACCEPTED
    assert tiers(manager) == {0: "dram", 1: "dram"}
    spill_all(manager)
    assert tiers(manager) == {0: "ssd", 1: "ssd"}
    assert manager.dram_used_bytes == 0
    assert hint(manager, HintVerb.PREFETCH) == HintOutcome(HintStatus.ACCEPTED, 2, 2)
    assert len(manager.take_orders()) == 2


def test_a_demotion_waits_for_the_disk_unless_the_block_is_used() -> None:
    manager = with_ssd(max_spills=1)
    put(manager, 0, 1, 2)
    hint(manager, HintVerb.RETAIN, 0, 1, 2)
    outcome = hint(manager, HintVerb.DEMOTE, now=1.0)
    assert (outcome.status, outcome.blocks) == (HintStatus.DEFERRED, 1)
    manager.lookup(SPACE, [named(0)], 9, 2.0)
    spill_all(manager, 2.0)
    spill_all(manager, 2.0)
    assert tiers(manager) == {0: "dram", 1: "ssd", 2: "ssd"}


def test_demote_without_a_disk_is_rejected() -> None:
    manager = full()
    claim(manager, 0)
    assert hint(manager, HintVerb.DEMOTE).status is HintStatus.REJECTED


def test_claimed_blocks_are_copied_while_the_disk_idles_and_leave_ssd_last() -> None:
    manager = with_ssd(ssd_bytes=3 * PAGE, max_spills=1)
    put(manager, 0, 1)
    claim(manager, 0, 1)
    copies = spills(manager)
    assert len(copies) == 1, "one at a time"
    manager.spilled(copies[0], True, 0.0)
    spill_all(manager)
    assert tiers(manager) == {0: "both", 1: "both"}
    put(manager, 2, 3)
    for index in (4, 5, 6):  # unclaimed blocks go through the third page of the disk
        while try_reserve(manager, index) != ["granted"]:
            spill_all(manager)
    assert {0, 1} <= tiers(manager).keys()


def test_short_claims_are_not_copied() -> None:
    """The copies would displace what only the disk has, and soon be of no use."""
    manager = with_ssd()
    put(manager, 0, 1)
    claim(manager, 0, ttl_s=59.0)
    assert spills(manager) == []
    claim(manager, 1, ttl_s=60.0)
    assert len(spills(manager)) == 1


def test_prefetch_waits_for_room_within_a_bound() -> None:
    manager = with_ssd()
    put(manager, 0, 1)
    hint(manager, HintVerb.RETAIN, 0, 1)
    hint(manager, HintVerb.DEMOTE)
    spill_all(manager)
    put(manager, 2, 3, 4, 5)
    manager.lookup(SPACE, [named(index) for index in (2, 3, 4, 5)], 9, 0.0)
    assert hint(manager, HintVerb.PREFETCH).status is HintStatus.DEFERRED
