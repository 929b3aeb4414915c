"""Queues of screening: prefill and decode instances over step times, and the KV-cache pool as a list."""

import math
from array import array
from collections import OrderedDict, deque
from heapq import heappop, heappush

import numpy as np

from hardware.cost import CostModel
from hardware.cost.loads import DecodeLoad
from serving.instance.core.dp_balance import DpBalance
from serving.virtual.decode import REFRESH_STEPS
from serving.virtual.movers import ASK_S, LOOKUP_S
from serving.virtual.times import Slowdown, TableTimes
from serving.virtual.workload.columns import TraceRequest

_FINE_BITS = 7
"""Leading bits of a step's tokens that are kept, so that its price is often known: 0.2 % in the mean."""


class ScreeningTimes:
    """Step times at coarse loads, each computed once: they come again in other candidates.

    Args:
        times: of prefill steps. dies, drafts: of a decode instance, with so many groups.
    """

    __slots__ = ("_cost", "_decode", "_dies", "_drafts", "_groups", "_times")

    def __init__(self, times: TableTimes, cost: CostModel, dies: int, drafts: int) -> None:
        self._times, self._cost, self._dies, self._drafts = times, cost, dies, drafts
        self._groups = cost.decode.parallelism.groups(dies)
        self._decode: dict[tuple[int, int, int], float] = {}

    def prefill(self, tokens: int, attended: float, largest: int) -> float:
        """Duration of a prefill step [s]."""
        return self._times.prefill(float(coarse(tokens)), float(coarse(int(attended))), float(coarse(largest)))

    def decode(self, largest: int, context: float, batch: int) -> float:
        """Duration of an iteration [s]: sequences of the fullest group, its context [tokens], sequences of all."""
        step = largest, coarse(int(context)), coarse(batch)
        seconds = self._decode.get(step)
        if seconds is None:
            load = DecodeLoad(float(largest), float(max(1, step[1])), step[2] / self._groups, self._dies, self._drafts)
            seconds = self._decode[step] = float(self._cost.decode_step_s(load))
        return seconds


class PrefillQueue:
    """One prefill instance: prompts in order of arrival, each step as full as its limit allows.

    As the engine does, it looks arrived prompts up in the KV-cache pool when a step starts, and the prompts that are
    found by then are computed in that step.
    """

    __slots__ = (
        "_asked_s", "_fetched", "_free_s", "_limit", "_lookup", "_most", "_running", "_slow", "_steps", "_times",
        "_tokens", "_waiting",
    )  # fmt: skip

    def __init__(self, times: ScreeningTimes, slow: Slowdown, limit: int, most: int, *, lookup: bool) -> None:
        """
        Args:
            limit: tokens of a step. most: prompts of a step. lookup: whether there is a pool.
        """
        self._times, self._slow, self._limit, self._most, self._lookup = times, slow, limit, most, lookup
        self._free_s = self._asked_s = 0.0
        self._steps = 0
        self._waiting: deque[_Prompt] = deque()
        self._fetched: deque[_Prompt] = deque()
        self._tokens = self._running = 0

    def add(self, now: float, row: int, cached: int, new: int, load_s: float) -> None:
        """Add a prompt. Args: load_s: time that its cached tokens take from the pool [s]."""
        self._waiting.append(_Prompt(now, row, cached, new, load_s))
        self._tokens += new

    def load(self, now: float) -> int:
        """Tokens that are not computed yet, including those of the running step."""
        return self._tokens + (self._running if self._free_s > now else 0)

    def advance(self, until_s: float, first_s: "array[float]") -> None:
        """Run the steps that start before a moment [s]. Effects: `first_s` of the prompts that end."""
        waiting, fetched = self._waiting, self._fetched
        while waiting or fetched:
            begins = self._free_s if fetched else max(self._free_s, waiting[0].at_s)
            if begins >= until_s:
                return
            self._look_up(begins)
            starts = max(begins, min([one.at_s for one in fetched]))
            if starts >= until_s:
                return
            self._step(starts, first_s)

    def _look_up(self, now: float) -> None:
        waiting, lookup = self._waiting, self._lookup
        while waiting and waiting[0].at_s <= now:
            one = waiting.popleft()
            if lookup:
                self._asked_s = max(now, self._asked_s) + ASK_S
                one.at_s = self._asked_s - ASK_S + LOOKUP_S + one.load_s
                self._asked_s += one.load_s
            self._fetched.append(one)

    def _step(self, now: float, first_s: "array[float]") -> None:
        attended = 0.0
        room, largest, count = self._limit, 0, 0
        left: list[_Prompt] = []
        ended: list[int] = []
        fetched = self._fetched
        while fetched and room and count < self._most:
            one = fetched.popleft()
            if one.at_s > now:
                left.append(one)
                continue
            fed = min(room, one.new)
            count += 1
            room -= fed
            attended += fed * (one.cached + 0.5 * fed)
            largest = max(largest, fed)
            one.new -= fed
            one.cached += fed
            if one.new:
                left.append(one)
            else:
                ended.append(one.row)
        fetched.extendleft(reversed(left))
        tokens = self._limit - room
        seconds = self._times.prefill(tokens, attended, largest)
        self._free_s = now + seconds * self._slow(self._steps)
        self._steps += 1
        self._tokens -= tokens
        self._running = tokens
        for row in ended:
            first_s[row] = self._free_s


class _Prompt:
    """A prompt on its way: when it arrived, then when its cached tokens are there [s]; tokens cached and to compute."""

    __slots__ = ("at_s", "cached", "load_s", "new", "row")

    def __init__(self, at_s: float, row: int, cached: int, new: int, load_s: float) -> None:
        self.at_s, self.row, self.cached, self.new, self.load_s = at_s, row, cached, new, load_s


def coarse(whole: int) -> int:
    """A number with its leading bits alone, rounded."""
    shift = max(0, whole.bit_length() - _FINE_BITS)
    return (whole + (1 << shift >> 1)) >> shift << shift


class DecodeLockstep:
    """One decode instance: groups of dies that iterate together; a sequence joins at the next iteration."""

    __slots__ = (
        "_at", "_at_s", "_base", "_blocks", "_counts", "_growth", "_heap", "_slow", "_step_s", "_times", "_waiting",
        "balance", "batch", "finish_s", "inside", "next_s", "peak",
    )  # fmt: skip

    def __init__(
        self, times: ScreeningTimes, slow: Slowdown, groups: int, most: int, blocks: int, finish_s: "array[float]"
    ) -> None:
        """
        Args:
            most, blocks: sequences and KV blocks of a group.
        """
        self._times, self._slow, self._blocks, self.finish_s = times, slow, blocks, finish_s
        self.balance = DpBalance(groups, most)
        self._heap: list[tuple[int, int, int, int, float, float]] = []
        self._waiting: list[deque[tuple[int, int, int, float, float]]] = [deque() for _ in range(groups)]
        self._counts = np.zeros(groups)
        self._base = np.zeros(groups)
        self._growth = np.zeros(groups)
        self._at = 0
        self._at_s = self._step_s = 0.0
        self.next_s = math.inf
        """When iterations may end a sequence or change their duration; `advance` has no effect until then."""
        self.batch = self.peak = self.inside = 0

    def join(self, now: float, row: int, steps: int, blocks: int, context: float, growth: float) -> None:
        """Add a sequence of so many iterations, whose context [tokens] grows by `growth` in each."""
        group = self.balance.choose().group
        self.balance.add(group, blocks)
        self.inside += 1
        if not self.batch and not self._heap:
            self._at_s = max(now, self._at_s)
        at = self._at
        if self._step_s:
            at += max(0, math.ceil((now - self._at_s) / self._step_s - 1e-9))
        self._waiting[group].append((row, steps, blocks, context, growth))
        heappush(self._heap, (at, -1, group, 0, 0.0, 0.0))
        self.advance(now)

    def advance(self, until_s: float) -> None:
        """Run the iterations that end by a moment [s]. Effects: `finish_s` of the sequences that end."""
        heap = self._heap
        while heap:
            due = heap[0][0]
            if self.batch:
                due = min(due, self._at + REFRESH_STEPS)
            when = self._at_s + (due - self._at) * self._step_s
            if when > until_s:
                self.next_s = when
                return
            self._at, self._at_s = due, when
            touched: set[int] = set()
            while heap and heap[0][0] <= due:
                _, row, group, blocks, base, growth = heappop(heap)
                touched.add(group)
                if row >= 0:
                    self.finish_s[row] = when
                    self.balance.remove(group, blocks)
                    self._take(group, -1, -base, -growth)
                    self.inside -= 1
            for group in sorted(touched):
                self._admit(group)
            self._retime()
        self.next_s = math.inf

    def _admit(self, group: int) -> None:
        """Start the waiting sequences of a group that fit."""
        waiting, most = self._waiting[group], self.balance.max_sequences
        tokens = self._blocks
        while waiting and self._counts[group] < most:
            row, steps, blocks, context, growth = waiting[0]
            if self._counts[group] and self._base[group] + self._growth[group] * self._at + context > tokens:
                return
            waiting.popleft()
            base = context - growth * self._at
            self._take(group, 1, base, growth)
            heappush(self._heap, (self._at + steps, row, group, blocks, base, growth))

    def _take(self, group: int, count: int, base: float, growth: float) -> None:
        self._counts[group] += count
        self._base[group] += base
        self._growth[group] += growth
        self.batch += count

    def _retime(self) -> None:
        """Duration of the iterations up to the next event, as `DecodeInstance` computes it."""
        if not self.batch:
            self._step_s = 0.0
            return
        self.peak = max(self.peak, self.batch)
        stretch = min(REFRESH_STEPS, max(1, self._heap[0][0] - self._at)) if self._heap else REFRESH_STEPS
        context = float(np.maximum.reduce(self._base + self._growth * (self._at + 0.5 * stretch)))
        largest = int(np.maximum.reduce(self._counts))
        self._step_s = self._times.decode(largest, context, self.batch) * self._slow(self._at)


def prefix_hits(requests: list[TraceRequest], block_tokens: int, capacity_tokens: int) -> list[int]:
    """Tokens of each prompt that an LRU pool of this capacity has, from the leading blocks of earlier prompts.

    At least one token of a prompt is always computed, and only full blocks are kept.
    """
    kept: OrderedDict[tuple[int, int], None] = OrderedDict()
    capacity, found = capacity_tokens // block_tokens, []
    for request in requests:
        full, hits = (request.prompt_tokens - 1) // block_tokens, 0
        keys = list(enumerate(request.blocks[: request.prompt_tokens // block_tokens]))
        for key in keys:
            if key not in kept:
                break
            hits += 1
        for key in reversed(keys):  # the first block of a prompt is the last to be evicted
            kept[key] = None
            kept.move_to_end(key)
        while len(kept) > capacity:
            kept.popitem(last=False)
        found.append(min(hits, full) * block_tokens)
    return found
