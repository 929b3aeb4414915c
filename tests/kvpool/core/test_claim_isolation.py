"""What a tenant claims costs no other tenant a block: the others' blocks are those of a server without its claims."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.ids import BlockHash
from serving.kvpool.core.entry import Kind, Space
from serving.kvpool.core.memory_manager import MemoryManager
from serving.kvpool.core.server_settings import ClaimSettings
from serving.values.kv_hints import BlockClaim, ClaimedBlocks, ClaimKind, HintAction, HintVerb
from tests.kvpool.core.ledger_driver import PAGE, named, put, small_manager

CLAIMANT, SECOND, OTHER = Space("claimant", "layout"), Space("second", "layout"), Space("other", "layout")
PAGES = 8
Blocks = tuple[set[BlockHash], Counter[str]]
SHARE = 0.5


class Step(NamedTuple):
    """`what`: of the others, "use" or "store" one of few blocks; of claimants, "new" block, "claim", "touch"."""

    what: str
    space: Space
    blocks: Sequence[int]
    session: str
    ttl_s: float
    wait_s: float


STEPS = st.builds(
    Step,
    st.sampled_from(["use", "store", "store", "new", "new", "claim", "claim", "touch"]),
    st.sampled_from([CLAIMANT, CLAIMANT, SECOND]),
    st.lists(st.integers(0, 11), min_size=1, max_size=5, unique=True),
    st.sampled_from(["s", "t"]),
    st.sampled_from([3.0, 50.0]),
    st.sampled_from([0.0, 0.0, 2.0]),
)


def others_blocks(steps: Sequence[Step], claims: bool, **settings: Any) -> list[Blocks]:
    """The other tenant's blocks, and how many each tenant has, after each step.

    With an SSD tier, blocks come to it directly.
    """
    manager = small_manager(slabs=PAGES // 4, claims=ClaimSettings(retain_share=SHARE), **settings)
    found: list[Blocks] = []
    now = 0.0
    for number, step in enumerate(steps):
        now += step.wait_s
        manager.tick(now)
        match step.what:
            case "new":
                store(manager, step.space, 100 + number, now)
            case "claim" | "touch" if claims:
                claim(manager, step, now)
            case "store":
                store(manager, OTHER, step.blocks[0], now)
            case "use":
                hits = manager.lookup(OTHER, [named(step.blocks[0])], 9, now)
                manager.release([hit.version for hit in hits if hit is not None], 9, now)
        manager.check()
        held = Counter([view.space.namespace for view in manager.entries()])
        found.append(({view.hash for view in manager.entries() if view.space == OTHER}, held))
    return found


def store(manager: MemoryManager, space: Space, index: int, now: float) -> None:
    if named(index) in manager._inventory.of(space):
        return
    if manager.settings.ssd_bytes:
        assert manager.restore(space, named(index), Kind.CONTEXT, PAGE, 1, now, now) is not None
        manager.take_orders()
    else:
        put(manager, index, space=space, now=now)


def claim(manager: MemoryManager, step: Step, now: float) -> None:
    mine = [view.hash for view in manager.entries() if view.space == step.space]
    chosen = tuple(dict.fromkeys(mine[index % len(mine)] for index in step.blocks)) if mine else ()
    if step.what == "claim":
        run = ClaimedBlocks(ClaimKind.RETAIN, step.ttl_s, chosen)
        manager.claims.claim(step.space, BlockClaim(step.session, "", "leaf", (run,)), now)
    else:
        manager.claims.hint(step.space.namespace, HintAction(HintVerb.TOUCH, step.session), now)


@pytest.mark.parametrize("eviction", ["lru", "fifo", "lfu", "cost"])
@given(steps=st.lists(STEPS, min_size=30, max_size=60))
def test_the_others_have_the_blocks_of_a_server_without_claims(eviction: str, steps: list[Step]) -> None:
    claimed = others_blocks(steps, True, eviction=eviction)
    assert claimed == others_blocks(steps, False, eviction=eviction)


@given(steps=st.lists(STEPS, min_size=30, max_size=60))
def test_and_so_on_ssd(steps: list[Step]) -> None:
    claimed = others_blocks(steps, True, ssd_bytes=PAGES * PAGE)
    assert claimed == others_blocks(steps, False, ssd_bytes=PAGES * PAGE)
