"""Capacity of the instances, shared by API keys: requests beyond it wait in the gateway, where keys take turns.

    waiting room ──start──► prompt is computed ──computed──► [handoff] ──placed──► generates ──ended──►
                            two steps of tokens               room for its KV       a slot

An instance serves in order of arrival and has no notion of keys or jobs. If several keys are configured, or requests
are ordered by job, a gateway therefore
starts only as many sequences as the instances report that they can run now, divided by the number of gateways. Three
limits apply: slots of generating sequences, KV capacity, and prompt tokens in flight.

A key with running sequences leaves part of each limit to the others; otherwise another key's first request would wait
for one of its streams to end. A sequence whose prompt another instance computes needs no decode slot yet, so the mean
number of such sequences is added to the slots, which would otherwise be empty.
"""

from collections import Counter

from msgspec import Struct

from serving.errors import LedgerError
from serving.gateway.core.gateway_admission import QueuedRequest

LEFT_SHARE = 10
"""A key leaves one slot per this many of its own, at least one: of 64 it gets 59. A larger share costs throughput if
one key is busy, and the autoscaler would not consider its pool full; a smaller share makes simultaneous requests of
another key wait."""
STEPS_AHEAD = 2
"""Steps of prompts that may be in flight for each instance: one that runs, and one that is ready when it ends."""
HALF_LIFE_S = 10.0
"""Half-life of the mean number of prompts in flight: a burst of them must not admit more sequences."""
_NEWEST_SHARE = 0.1
"""Weight of the latest prompt in the mean share of cached tokens."""


class PoolSlots(Struct, frozen=True, gc=False):
    """Capacity of the instances: one gateway's share.

    Args:
        sequences: generating sequences.
        step_tokens: tokens of one step of all prefill instances. chunk_tokens: of the largest of these.
        kv_tokens, free_tokens: tokens whose KV fits the generating instances, in total and at present.
        apart: whether other instances than the generating ones compute prompts.
    """

    sequences: int
    step_tokens: int
    chunk_tokens: int
    kv_tokens: int
    free_tokens: int
    apart: bool


class _RunningSequence:
    """One sequence in the pools. `work`, `kv`: tokens still reserved for its prompt and its KV."""

    __slots__ = ("key", "kv", "prompt", "work")

    def __init__(self, key: str, prompt: int, work: int, kv: int) -> None:
        self.key = key
        self.prompt = prompt
        self.work = work
        self.kv = kv


class ConcurrencyLedger:
    """Running sequences of one gateway by key, and the capacity left for others."""

    def __init__(self, *, shared: bool = True) -> None:
        """
        Args:
            shared: whether there are several keys, so that each leaves part of the capacity to the others.
        """
        self.shared = shared
        self._slots: dict[str, _RunningSequence] = {}
        self._own: Counter[str] = Counter()
        self._computing: Counter[str] = Counter()
        """Prompts of each key that are not computed yet."""
        self._work = 0
        self._kv = 0
        self._fresh = 1.0
        """Recent share of prompts that had to be computed."""
        self._before = 0.0
        """Recent mean number of prompts in progress, until `_mean_at`."""
        self._mean_at = 0.0
        self._pools: PoolSlots | None = None
        self._running = 0
        self.freed = False
        """Whether a prompt was computed since the last admission, so that the next may be admitted."""

    def update(self, pools: PoolSlots | None, running: int, now: float) -> None:
        """Set the instances' current capacity, None if not reported, and this gateway's sequences there."""
        self._pass(now)
        self._pools = pools
        self._running = running
        self.freed = False

    @property
    def most(self) -> int | None:
        """Sequences that may be in the pools; None = the configured number."""
        pools = self._pools
        if pools is None:
            return None
        return max(1, pools.sequences + (min(int(self._before), pools.sequences) if pools.apart else 0))

    def of(self, key: str) -> int:
        """Sequences of a key in the pools."""
        return self._own[key]

    # ---- decisions ---------------------------------------------------------------------------------------------------

    def held(self, one: QueuedRequest) -> bool:
        """Whether a request waits because its key has used its share, so that other keys' requests may overtake it.

        Never if the key has no sequence in the pools.
        """
        pools, most, own = self._pools, self.most, self._own[one.key]
        if pools is None or most is None or not own:
            return False
        slots = _bounded(one.sequences, most)
        if self.shared and most - self._running - slots < max(1, (own + slots) // LEFT_SHARE):
            return True
        if self._computing[one.key] and self._work >= STEPS_AHEAD * pools.step_tokens:
            return True
        return self.shared and self._room_after(one, pools) < pools.kv_tokens // LEFT_SHARE

    def full(self, one: QueuedRequest) -> bool:
        """Whether there is no slot or KV capacity for it: then all wait, otherwise a large one would never start."""
        pools, most = self._pools, self.most
        if pools is None or most is None:
            return False
        return self._running + _bounded(one.sequences, most) > most or self._room_after(one, pools) < 0

    def _room_after(self, one: QueuedRequest, pools: PoolSlots) -> int:
        """Free KV capacity [tokens] once this request, and all that will soon need theirs, have theirs."""
        return pools.free_tokens - self._kv - _bounded(one.tokens + one.expected_tokens, pools.kv_tokens)

    # ---- events ----------------------------------------------------------------------------------------------------

    def start(self, name: str, key: str, prompt: int, expected: int, now: float) -> None:
        """Give a slot to a sequence sent to the pools. `expected`: tokens that it will probably generate.

        Raises: LedgerError if it already has one.
        """
        if name in self._slots:
            raise LedgerError(f"sequence {name} already has a slot")
        self._pass(now)
        # A prompt longer than a step keeps only one instance busy.
        chunk = self._pools.chunk_tokens if self._pools is not None else prompt
        work = max(1, min(round(prompt * self._fresh), chunk))
        self._slots[name] = _RunningSequence(key, prompt, work, prompt + expected)
        self._own[key] += 1
        self._computing[key] += 1
        self._work += work
        self._kv += prompt + expected

    def computed(self, name: str, cached: int, now: float) -> None:
        """Note that a sequence's prompt is computed, `cached` tokens excepted. Unknown names are ignored."""
        slot = self._slots.get(name)
        if slot is None or not slot.work:
            return
        if slot.prompt:
            self._fresh += _NEWEST_SHARE * (max(0.0, 1.0 - cached / slot.prompt) - self._fresh)
        self._pass(now)
        self._drop_work(slot)
        self.freed = True
        if self._pools is not None and not self._pools.apart:
            self._drop_kv(slot)

    def placed(self, name: str) -> None:
        """Note that its KV is reserved at the generating instance. Unknown names are ignored."""
        if (slot := self._slots.get(name)) is not None:
            self._drop_kv(slot)

    def ended(self, name: str, now: float) -> None:
        """Note that a sequence has left the pools. Unknown names are ignored."""
        slot = self._slots.pop(name, None)
        if slot is None:
            return
        self._pass(now)
        self._drop_work(slot)
        self._drop_kv(slot)
        _less(self._own, slot.key)

    def _pass(self, now: float) -> None:
        """Update the mean number of prompts in flight up to now."""
        if now > self._mean_at:
            keep = 0.5 ** ((now - self._mean_at) / HALF_LIFE_S)
            self._before = self._computing.total() * (1.0 - keep) + self._before * keep
            self._mean_at = now

    def _drop_work(self, slot: _RunningSequence) -> None:
        if slot.work:
            self._work -= slot.work
            slot.work = 0
            _less(self._computing, slot.key)

    def _drop_kv(self, slot: _RunningSequence) -> None:
        self._kv -= slot.kv
        slot.kv = 0

    def check(self) -> None:
        """Check that the sums are those of the slots.

        Raises: LedgerError if they are not.
        """
        slots = self._slots.values()
        if self._own != Counter([slot.key for slot in slots]):
            raise LedgerError("the slots of the keys do not match the slots in use")
        if self._computing != Counter([slot.key for slot in slots if slot.work]):
            raise LedgerError("the prompts of the keys do not match those in flight")
        if (self._work, self._kv) != (sum([slot.work for slot in slots]), sum([slot.kv for slot in slots])):
            raise LedgerError("tokens in flight do not match the slots")


def _bounded(wanted: int, most: int) -> int:
    """Limit a request larger than the total; half of the total becomes free while it is next."""
    return min(wanted, max(1, most // 2))


def _less(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
