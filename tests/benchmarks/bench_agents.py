"""Prompt tokens of agents' conversations that a KV-cache pool has to compute again, by policy, memory and SSD.

Replays a trace of kv-cache-tester (loadgen/README.md, "Traces") with its recorded pauses, each response taking the time
of the trace's own fit. Memory is a share of the live contexts: the last prompts of all conversations and branches that
have begun and not ended, averaged over the time in which conversations start.

    order   hit shares by eviction policy, block by block; if the cache knew each session's next turn, or its end; and
            of Belady's choice, which knows the next use of each block
    pool    the pool's own ledgers (serving/virtual/memory_pool.py): least recently used, without and with an SSD tier
    pauses  the same ledgers, without and with learned tool pauses (serving/gateway/core/pause_times.py)
"""

import heapq
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hardware.units import MIB
from serving.config.kvcache import KvCacheConfig
from serving.gateway.core.kv_hints import HintLimits, SessionName
from serving.gateway.core.pause_times import PauseTimes, pause_claim
from serving.ids import BlockHash
from serving.kvpool.core.eviction import EvictionPolicy, make_policy
from serving.values.kv_hints import BlockClaim, ClaimedBlocks, ClaimKind
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.workload.block_names import BlockNames
from serving.virtual.workload.jobs import TraceJob
from serving.virtual.workload.open import open_workload
from tests.benchmarks.conditions import Figure, conditions, make_parser, progress, report, show_conditions

SHARES = ((1, 2), (1, 3), (1, 5))
MODES = ("order", "pool", "pauses")
POLICIES = ("lru", "lfu", "fifo", "cost")
TOKEN_BYTES = 70_272
"""KV of one token of the 671 B parameter model, all layers, in BF16: what the disk's pace is held against."""
_RESPONSE_S, _TOKEN_S = 2.6, 0.0153
"""Duration of a recorded response; see loadgen/trace/weka.py."""


@dataclass(frozen=True, slots=True)
class Use:
    """One request of the replay: when it arrives and its response ends [s], tokens, blocks and their numbers."""

    at_s: float
    end_s: float
    tokens: int
    blocks: tuple[BlockHash, ...]
    numbers: list[int]
    stream: tuple[int, int]
    stop: str = ""


def replay(jobs: Sequence[TraceJob], trace_block_tokens: int, block_tokens: int) -> list[Use]:
    """All requests in order of arrival."""
    names = BlockNames(trace_block_tokens, block_tokens)
    numbers: dict[BlockHash, int] = {}
    found: list[Use] = []
    number = 0
    for job in jobs:
        ends_s: list[float] = []
        for turn in job.turns:
            at_s = max((ends_s[wait] for wait in turn.waits_for), default=job.start_s) + turn.pause_s
            ends_s.append(at_s + _RESPONSE_S + _TOKEN_S * turn.output_tokens)
            blocks = names.names(turn.prompt_tokens, turn.blocks(), number)
            own = [numbers.setdefault(block, len(numbers)) for block in blocks]
            found.append(Use(at_s, ends_s[-1], turn.prompt_tokens, blocks, own, (job.number, turn.branch), turn.stop))
            number += 1
    return sorted(found, key=lambda use: use.at_s)


def live_blocks(uses: Sequence[Use]) -> float:
    """Blocks of the last prompts of all live streams, averaged over the time in which conversations start."""
    first: dict[tuple[int, int], float] = {}
    last: dict[tuple[int, int], Use] = {}
    area = 0.0
    until_s = max(use.at_s for use in uses if use.stream[1] == 0 and first.setdefault(use.stream, use.at_s) == use.at_s)
    for use in uses:
        before = last.get(use.stream)
        if before is not None:
            area += len(before.blocks) * max(0.0, min(use.at_s, until_s) - before.at_s)
        last[use.stream] = use
    area += sum(len(use.blocks) * max(0.0, min(use.end_s, until_s) - use.at_s) for use in last.values())
    return area / (until_s - uses[0].at_s)


def hits_by_policy(uses: Sequence[Use], capacity: int, policy: EvictionPolicy) -> int:
    """Leading blocks of all prompts that are in a cache of so many blocks."""
    hits = 0
    for use in uses:
        hits += _leading(use.numbers, policy)
        for number in reversed(use.numbers):  # the end of a prompt is colder than its beginning
            if number in policy:
                policy.use(number)
                continue
            if len(policy) >= capacity:
                for victim in policy.coldest(1, lambda _: True):
                    policy.remove(victim)
            policy.insert(number, 1, 1.0)
    return hits


def next_uses(uses: Sequence[Use]) -> list[list[int]]:
    """For each block of each request, the next request that has it; the number of requests if none has."""
    found: list[list[int]] = []
    upcoming: dict[int, int] = {}
    for index in range(len(uses) - 1, -1, -1):
        found.append([upcoming.get(block, len(uses)) for block in uses[index].numbers])
        upcoming.update(dict.fromkeys(uses[index].numbers, index))
    return found[::-1]


def next_turns(uses: Sequence[Use]) -> list[list[int]]:
    """The same for what a session can tell: its next turn, or that the conversation or branch has ended."""
    found: list[list[int]] = []
    upcoming: dict[tuple[int, int], int] = {}
    for index in range(len(uses) - 1, -1, -1):
        use = uses[index]
        found.append([upcoming.get(use.stream, len(uses))] * len(use.numbers))
        upcoming[use.stream] = index
    return found[::-1]


def hits_if_known(
    uses: Sequence[Use], capacity: int, following: Sequence[Sequence[int]], *, supersedes: bool = False
) -> int:
    """The same if each block that leaves, or is not kept at all, is the one that is expected last.

    Args:
        following: for each block of each request, when it is expected next, as the number of a request.
        supersedes: a stream's blocks that its new prompt has no more are not expected again.
    """
    held: dict[tuple[int, int], list[int]] = {}
    cached: dict[int, int] = {}
    latest: list[tuple[int, int, int]] = []
    hits = 0
    for use, expected in zip(uses, following, strict=True):
        hits += _leading(use.numbers, cached)
        if supersedes:
            for block in set(held.get(use.stream, ())).difference(use.numbers).intersection(cached):
                cached[block] = len(uses)
                heapq.heappush(latest, (-len(uses), 0, block))
            held[use.stream] = use.numbers
        for place, (block, again) in enumerate(zip(use.numbers, expected, strict=True)):
            if block not in cached and len(cached) >= capacity:
                while cached.get(latest[0][2]) != -latest[0][0]:
                    heapq.heappop(latest)  # it was used since
                if -latest[0][0] <= again:
                    continue  # this block is expected last of all
                del cached[heapq.heappop(latest)[2]]
            cached[block] = again
            heapq.heappush(latest, (-again, -place, block))
    return hits


def _leading(blocks: Sequence[int], cached: "EvictionPolicy | dict[int, int]") -> int:
    return next((place for place, block in enumerate(blocks) if block not in cached), len(blocks))


def order_figures(uses: Sequence[Use]) -> Iterator[Figure]:
    """Hit shares of each policy at each share of memory."""
    live, asked = live_blocks(uses), sum(len(use.blocks) for use in uses)
    hits: dict[str, int] = {}
    for part, whole in SHARES:
        capacity = max(1, round(live * part / whole))
        for name in POLICIES:
            progress(f"{name} at {part}/{whole}")
            hits[name] = hits_by_policy(uses, capacity, make_policy(name))
            yield _share(f"{name}, memory {part}/{whole}", hits[name] / asked)
        for name, following in (("next turns known", next_turns(uses)), ("Belady", next_uses(uses))):
            progress(f"{name} at {part}/{whole}")
            hits[name] = hits_if_known(uses, capacity, following, supersedes=name != "Belady")
            yield _share(f"{name}, memory {part}/{whole}", hits[name] / asked)
        way = (hits["next turns known"] - hits["lru"]) / max(1, hits["Belady"] - hits["lru"])
        yield Figure(f"next turns known, of the way from lru to Belady, memory {part}/{whole}", "", (way,), 0.8, False)


def pool_of(live: float, memory: float, ssd: float, block_bytes: int) -> VirtualPool:
    """One memory server with shares of the live contexts."""

    def mib(share: float) -> int:
        return math.ceil(live * share * block_bytes / MIB)

    config = KvCacheConfig(replicas=1, ub_memory_mib=mib(memory), ssd_mib=mib(ssd) if ssd else 0)
    return VirtualPool(config, block_bytes)


class PausePool:
    """A pool whose sessions are kept by learned tool pauses."""

    def __init__(self, pool: VirtualPool, limits: HintLimits) -> None:
        self._pool = pool
        self._times = PauseTimes(limits)

    def ended(self, number: int, use: Use, now: float) -> None:
        """A response has ended, and its prompt is stored."""
        named = _session(use)
        claim = pause_claim(named, self._times.limits)
        run = ClaimedBlocks(ClaimKind.RETAIN, claim.spans[0].ttl_s, use.blocks)
        self._pool.claim("", BlockClaim(claim.session, claim.branch, str(number), (run,)), now)
        self._times.on_answer("", named, ["tool"] if use.stop == "tool_use" else [], now)

    def arrives(self, use: Use) -> None:
        """A request arrives."""
        self.send(use.at_s)
        self._times.on_request("", _session(use), use.at_s, offers_tools=True)

    def send(self, now: float) -> None:
        """Carry out the actions that are due up to now."""
        while (due := self._times.next_due()) <= now:
            for namespace, actions in self._times.on_due(due):
                for action in actions:
                    self._pool.hint(namespace, action, due)


def _session(use: Use) -> SessionName:
    return SessionName(str(use.stream[0]), str(use.stream[1]))


def computed(uses: Sequence[Use], pool: VirtualPool, block_tokens: int, pauses: PausePool | None = None) -> int:
    """Prompt tokens that are not found in the pool. A prompt is stored when its response has ended."""
    total = 0
    ending: list[tuple[float, int]] = []
    for index, use in enumerate(uses):
        while ending and ending[0][0] <= use.at_s:
            end_s, one = heapq.heappop(ending)
            if pauses is not None:
                pauses.send(end_s)
            pool.store("", uses[one].blocks, 0, end_s)
            if pauses is not None:
                pauses.ended(one, uses[one], end_s)
        if pauses is not None:
            pauses.arrives(use)
        found = pool.lookup_and_hold("", use.blocks, 0, use.at_s)
        for _ in range(found.blocks if found.from_ssd else 0):  # block by block, as a reader: loads are bounded
            pool.release(found.handle, use.at_s, 1)
        pool.release(found.handle, use.at_s)
        total += use.tokens - found.blocks * block_tokens
        heapq.heappush(ending, (use.end_s, index))
    return total


def pool_figures(uses: Sequence[Use], block_tokens: int) -> Iterator[Figure]:
    """Computed share of all prompt tokens without and with the SSD tier, and their ratio."""
    live, asked = live_blocks(uses), sum(use.tokens for use in uses)
    shares = {}
    for ssd in (0.0, 3 / 5):
        progress(f"pool, memory 1/5, SSD {ssd:g}")
        pool = pool_of(live, 1 / 5, ssd, block_tokens * TOKEN_BYTES)
        shares[ssd] = computed(uses, pool, block_tokens)
        pool.check()
        name = "computed prompt tokens, memory 1/5" + (", SSD 3/5" if ssd else "")
        yield Figure(name, "%", (100 * shares[ssd] / asked,))
    yield Figure("computed with SSD / without", "", (shares[3 / 5] / shares[0.0],), 0.5)


def pause_figures(uses: Sequence[Use], block_tokens: int) -> Iterator[Figure]:
    """Share of prompt tokens found in the pool: least recently used, and by how much tool pauses add to it."""
    live, asked = live_blocks(uses), sum(use.tokens for use in uses)
    for ssd in (0.0, 3 / 5):
        for part, whole in SHARES:
            name = f"memory {part}/{whole}" + (", SSD 3/5" if ssd else "")
            found = []
            for learns in (False, True):
                progress(f"pool, {name}, tool pauses {learns}")
                pool = pool_of(live, part / whole, ssd, block_tokens * TOKEN_BYTES)
                pauses = PausePool(pool, HintLimits(tiered=ssd > 0, block_tokens=block_tokens)) if learns else None
                found.append(100 * (1 - computed(uses, pool, block_tokens, pauses) / asked))
                pool.check()
            yield Figure(f"tokens found, {name}", "%", (found[0],))
            goal = 1.0 if whole == 5 else -0.3
            yield Figure(f"tool pauses add, {name}", "points", (found[1] - found[0],), goal, False)


def _share(name: str, share: float) -> Figure:
    return Figure(f"hits, {name}", "%", (100 * share,))


def main() -> None:
    """Measure and report."""
    parser = make_parser("bench_agents", __doc__, 1, MODES)
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE", help="conversations of kv-cache-tester")
    parser.add_argument("--conversations", type=int, default=120, metavar="N", help="the first N (default 120)")
    parser.add_argument("--block-tokens", type=int, default=512, metavar="N", help="of a block (default 512)")
    args = parser.parse_args()
    begun = time.perf_counter()
    workload = open_workload(args.trace, limit=args.conversations)
    uses = replay(list(workload.jobs or ()), workload.block_tokens, args.block_tokens)
    facts = conditions(
        None, conversations=args.conversations, requests=len(uses), streams=len({use.stream for use in uses}),
        block_tokens=args.block_tokens, live_tokens=round(live_blocks(uses) * args.block_tokens),
    )  # fmt: skip
    show_conditions(facts)
    figures: list[Figure] = []
    if "order" in (args.modes or MODES):
        figures += order_figures(uses)
    if "pool" in (args.modes or MODES):
        figures += pool_figures(uses, args.block_tokens)
    if "pauses" in (args.modes or MODES):
        figures += pause_figures(uses, args.block_tokens)
    figures.append(Figure("time to run it", "s", (time.perf_counter() - begun,), 300.0))
    report("bench_agents", facts, figures)


if __name__ == "__main__":
    main()
