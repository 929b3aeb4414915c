"""What claims earn the tenant that makes them and cost the others, on recorded agents, in the pool's own ledgers.

Replays a trace as `bench_agents` does. Memory is 1/5 of the live contexts.

    others  half of the conversations are a tenant's that claims every prompt for an hour: hit shares of the other
            tenant with and without these claims, without and with an SSD tier of 3/5 of the live contexts
    known   with that SSD tier: hit shares if each session claims its blocks until its next turn, and is released
            at its end; and block by block with as much room: ends known, next turns known, and Belady's choice
    cost    CPU time of lookup, reserve and commit while sessions claim all they have / while none does; of a claim
"""

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from serving.ids import BlockHash
from serving.kvpool.core.entry import Space
from serving.kvpool.core.eviction import make_policy
from serving.kvpool.core.memory_manager import ManagerSettings, MemoryManager
from serving.values.kv_hints import BlockClaim, ClaimedBlocks, ClaimKind, HintAction, HintVerb
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.workload.open import open_workload
from tests.benchmarks.bench_agents import (
    TOKEN_BYTES,
    Use,
    hits_if_known,
    live_blocks,
    next_turns,
    next_uses,
    pool_of,
    replay,
)
from tests.benchmarks.conditions import Figure, conditions, make_parser, progress, report, show_conditions

MODES = ("others", "known", "cost")
MEMORY, SSD = 1 / 5, 3 / 5
HOUR_S = 3600.0
Hint = Callable[[VirtualPool, int, float], None]
"""What is said to the pool when the response of this request has ended, at this time."""


def hits(
    uses: Sequence[Use], pool: VirtualPool, hint: Hint | None = None, tenant_of: Callable[[Use], str] = lambda _: ""
) -> dict[str, list[int]]:
    """Blocks found and blocks asked for, by tenant. A prompt is stored when its response has ended."""
    found: dict[str, list[int]] = {}
    ending: list[tuple[float, int]] = []
    for index, use in enumerate(uses):
        while ending and ending[0][0] <= use.at_s:
            end_s, one = heapq.heappop(ending)
            pool.store(tenant_of(uses[one]), uses[one].blocks, 0, end_s)
            if hint is not None:
                hint(pool, one, end_s)
        tenant = tenant_of(use)
        prefix = pool.lookup_and_hold(tenant, use.blocks, 0, use.at_s)
        pool.release(prefix.handle, use.at_s)
        counts = found.setdefault(tenant, [0, 0])
        counts[0] += prefix.blocks
        counts[1] += len(use.blocks)
        heapq.heappush(ending, (use.end_s, index))
    return found


def claim_of(use: Use, ttl_s: float, leaf: str) -> BlockClaim:
    """A claim of all its blocks."""
    runs = (ClaimedBlocks(ClaimKind.RETAIN, ttl_s, use.blocks),)
    return BlockClaim(str(use.stream[0]), str(use.stream[1]), leaf, runs)


def others_figures(uses: Sequence[Use], block_bytes: int) -> Iterator[Figure]:
    """Hit shares that another tenant loses to one that claims everything."""

    def tenant_of(use: Use) -> str:
        return "claimant" if use.stream[0] % 2 else "other"

    def claim_all(pool: VirtualPool, index: int, now: float) -> None:
        if tenant_of(uses[index]) == "claimant":
            pool.claim("claimant", claim_of(uses[index], HOUR_S, str(index)), now)

    live = live_blocks(uses)
    for ssd in (0.0, SSD):
        shares: list[dict[str, float]] = []
        for hint in (None, claim_all):
            progress(f"half of the conversations claimed: {hint is not None}, SSD {ssd:g}")
            pool = pool_of(live, MEMORY, ssd, block_bytes)
            found = hits(uses, pool, hint, tenant_of)
            shares.append({tenant: 100 * one / asked for tenant, (one, asked) in found.items()})
            pool.check()
        beside = ", SSD 3/5" if ssd else ""
        for tenant, goal in (("other", 1.0), ("claimant", None)):
            lost = shares[0][tenant] - shares[1][tenant]
            yield Figure(f"{tenant}'s hits, nobody claims{beside}", "%", (shares[0][tenant],))
            yield Figure(f"points that the {tenant} loses by claims of everything{beside}", "", (lost,), goal)


def next_arrivals(uses: Sequence[Use]) -> list[float | None]:
    """When the next turn of each request's stream arrives [s]; None = never."""
    found: list[float | None] = []
    upcoming: dict[tuple[int, int], float] = {}
    for use in reversed(uses):
        found.append(upcoming.get(use.stream))
        upcoming[use.stream] = use.at_s
    return found[::-1]


def hits_if_released(uses: Sequence[Use], capacity: int) -> int:
    """Blocks found in a cache of so many blocks if only ends are known: of streams, and of what a new prompt lacks.

    All others are evicted by last use: the most that claims earn if every live session has one of the same strength.
    """
    last = {use.stream: index for index, use in enumerate(uses)}
    held: dict[tuple[int, int], list[int]] = {}
    policy, found = make_policy("lru"), 0
    for index, use in enumerate(uses):
        found += next((place for place, block in enumerate(use.numbers) if block not in policy), len(use.numbers))
        for block in reversed(use.numbers):
            if block in policy:
                policy.use(block)
                continue
            for victim in policy.coldest(1, lambda _: True) if len(policy) >= capacity else ():
                policy.remove(victim)
            policy.insert(block, 1, 1.0)
        kept = set() if last[use.stream] == index else set(use.numbers)
        for block in [*reversed(held.get(use.stream, ())), *reversed(use.numbers)]:
            if block not in kept:
                policy.cool(block)
        held[use.stream] = use.numbers
    return found


def known_figures(uses: Sequence[Use], block_bytes: int) -> Iterator[Figure]:
    """Share of the way from LRU to Belady that claims until the known next turn reach."""
    following = next_arrivals(uses)

    def claim_known(pool: VirtualPool, index: int, now: float) -> None:
        use, again_s = uses[index], following[index]
        if again_s is None:
            pool.hint("", HintAction(HintVerb.RELEASE, str(use.stream[0]), str(use.stream[1])), now)
        else:
            pool.claim("", claim_of(use, max(1.0, again_s - now), str(index)), now)

    live, asked = live_blocks(uses), sum(len(use.blocks) for use in uses)
    found: dict[str, int] = {}
    for name, hint in (("lru", None), ("claims", claim_known)):
        progress(f"memory 1/5, SSD 3/5: {name}")
        pool = pool_of(live, MEMORY, SSD, block_bytes)
        found[name] = hits(uses, pool, hint)[""][0]
        pool.check()
    progress("block by block")
    room = round(live * (MEMORY + SSD))
    found["Belady"] = hits_if_known(uses, room, next_uses(uses))
    found["only ends known"] = hits_if_released(uses, room)
    found["next turns known"] = hits_if_known(uses, room, next_turns(uses), supersedes=True)
    for name, blocks in found.items():
        yield Figure(f"hits, {name}, memory 1/5, SSD 3/5", "%", (100 * blocks / asked,))
    way = (found["claims"] - found["lru"]) / max(1, found["Belady"] - found["lru"])
    yield Figure("claims until the next turn, of the way from lru to Belady", "", (way,), 0.8, False)


# Cost

_BLOCK_BYTES, _BLOCKS, _CHAIN, _NEW = 4096, 8192, 64, 8
_SESSIONS = 60
"""Their blocks fill nearly half of the memory, as much as may be claimed: all lookups hit, with and without claims."""
_TURNS = 480


class Server:
    """A full memory server with some sessions; one turn of one of them at a time."""

    def __init__(self, claims: bool) -> None:
        self.manager = MemoryManager(ManagerSettings(_BLOCKS * _BLOCK_BYTES, high_water=1.0, low_water=1.0))
        self.chains: list[tuple[str, list[BlockHash]]] = []
        self.claims = claims
        self.named = 0
        self.now = 0.0
        self.claiming: list[float] = []
        for session in range(_SESSIONS):
            self.chains.insert(0, (str(session), []))
            self.turn(_CHAIN)
        while self.named < 2 * _BLOCKS:
            self.turn()
        self.claiming.clear()

    def turn(self, new: int = _NEW) -> float:
        """The next session's turn: its blocks are looked up, new ones stored, all claimed. Returns: CPU time [s]."""
        (session, chain), manager, space = self.chains.pop(0), self.manager, Space("tenant", "layout")
        self.now += 1.0
        added = [BlockHash((self.named + at).to_bytes(16, "little")) for at in range(new)]
        self.named += new
        begun = time.process_time()
        found = manager.lookup(space, chain, 1, self.now)
        grants = manager.reserve(space, [(block, _BLOCK_BYTES) for block in added], 1, self.now)
        for grant in reversed(grants):
            manager.commit(grant.version, 1, 1, self.now)
        manager.release([one.version for one in found if one is not None], 1, self.now)
        spent = time.process_time() - begun
        assert None not in found, "a live block was evicted: the servers are not comparable"
        chain = [*chain[-(_CHAIN - new) or len(chain) :], *added]
        self.chains.append((session, chain))
        if self.claims:
            run = ClaimedBlocks(ClaimKind.RETAIN, HOUR_S, tuple(chain))
            begun = time.process_time()
            manager.claims.claim(space, BlockClaim(session, "", str(self.named), (run,)), self.now)
            self.claiming.append(time.process_time() - begun)
        return spent


def cost_figures(repeats: int) -> Iterator[Figure]:
    """Two servers, with and without claims, in turns."""
    servers = [Server(claims=False), Server(claims=True)]
    ratios: list[float] = []
    whole: list[float] = []
    for _ in range(repeats):
        spent = [0.0, 0.0]
        for turn in range(_TURNS):
            for one in (0, 1) if turn % 2 else (1, 0):
                spent[one] += servers[one].turn()
        ratios.append(spent[1] / spent[0])
        whole.append((spent[1] + sum(servers[1].claiming[-_TURNS:])) / spent[0])
    servers[1].manager.check()
    claiming = sorted(servers[1].claiming)
    yield Figure("lookup, reserve and commit with claims / without", "", tuple(ratios), 1.03)
    yield Figure("the same with the claim that follows", "", tuple(whole))
    yield Figure(f"a claim of {_CHAIN} blocks, CPU time, p50", "ms", (1e3 * claiming[len(claiming) // 2],))
    yield Figure(f"a claim of {_CHAIN} blocks, CPU time, p99", "ms", (1e3 * claiming[len(claiming) * 99 // 100],), 0.2)


def main() -> None:
    """Measure and report."""
    parser = make_parser("bench_claims", __doc__, 5, MODES)
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="conversations of kv-cache-tester, for others, known"
    )
    parser.add_argument("--conversations", type=int, default=120, metavar="N", help="the first N (default 120)")
    parser.add_argument("--block-tokens", type=int, default=512, metavar="N", help="of a block (default 512)")
    args = parser.parse_args()
    modes = args.modes or MODES
    facts = conditions(None, conversations=args.conversations, block_tokens=args.block_tokens)
    show_conditions(facts)
    figures: list[Figure] = []
    if args.trace is not None and {"others", "known"} & set(modes):
        workload = open_workload(args.trace, limit=args.conversations)
        uses = replay(list(workload.jobs or ()), workload.block_tokens, args.block_tokens)
        for mode, measured in (("others", others_figures), ("known", known_figures)):
            figures += measured(uses, args.block_tokens * TOKEN_BYTES) if mode in modes else ()
    if "cost" in modes:
        figures += cost_figures(args.repeats)
    report("bench_claims", facts, figures)


if __name__ == "__main__":
    main()
