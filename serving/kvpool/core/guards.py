"""Runs of claimed blocks: which entries they keep in memory, until when, and within which budget.

A run is some blocks of a chain with the same kind of claim and the same deadline. It *guards* its leading `cut` blocks:
eviction passes over them. The others have lost that protection, to a budget or because room was needed, but stay
claimed: on SSD they are removed last, and a prefetch finds them.

    entry.claims   live runs that have it          entry.guards   runs that guard it, a pin counted as `PIN`

Guards only order victims, and only within a namespace (`own_order.py`). When an allocation finds no other, retained
entries are given up: those of the nearest deadline first, of a run the last block first. Only pins stay, within their
budget. An expired entry is ordinary again, at its place in the policy's order.

Work is constant for each block of a run; deadlines and recency are kept for runs.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from serving.kvpool.core.claim_runs import ClaimLimits, ClaimOwner, ClaimRun
from serving.kvpool.core.entry import Entry
from serving.kvpool.core.manager_stats import Counters
from serving.kvpool.core.quotas import Account
from serving.kvpool.core.server_settings import ClaimSettings
from serving.values.kv_hints import ClaimKind

PIN = 1 << 32
"""Weight of a pin in `Entry.guards`."""
_EXPIRED_AT_ONCE = 65_536
"""Blocks after whose expiry other calls get their turn."""
_SWEEP_AT = 1024
"""Minimum number of items in a heap before those of ended runs are swept."""


class Guards:
    """All runs of one server. Keeps `Entry.claims`, `Entry.guards` and the accounts' guarded bytes true."""

    def __init__(
        self,
        settings: ClaimSettings,
        capacity_bytes: int,
        counters: Counters,
        by_version: Mapping[int, Entry],
        freed: Callable[[Entry], None],
        cooled: Callable[[Entry], None],
        reordered: Callable[[Entry], None],
    ) -> None:
        """
        Args:
            capacity_bytes: of the server's memory.
            freed: called with an entry that is no longer guarded, or no longer pinned.
            cooled: called with an entry that is no longer claimed and has not been used since its claim.
            reordered: called with an entry on SSD that was not claimed before, or is not any more.
        """
        self.retained_bytes = 0
        self.pinned_bytes = 0
        self._counters = counters
        self._by_version = by_version
        self._freed, self._cooled, self._reordered = freed, cooled, reordered
        self._retain_budget = int(settings.retain_share * capacity_bytes)
        self._pin_budget = int(settings.pin_share * capacity_bytes)
        self._max_ttl_s = settings.max_ttl_s
        # At most one item of each run, corrected when it surfaces: deadlines only move back. Always the same list.
        self.due: list[tuple[float, int, ClaimRun]] = []
        self._owners: dict[Account, ClaimOwner] = {}
        self._numbers = 0
        self._sweep_at = _SWEEP_AT

    @property
    def next_due(self) -> float | None:
        """No run ends by itself before this."""
        return self.due[0][0] if self.due else None

    def owner_of(self, account: Account) -> ClaimOwner:
        """The claims of an account."""
        owner = self._owners.get(account)
        if owner is None:
            owner = self._owners[account] = ClaimOwner(account, ClaimLimits())
        return owner

    # Beginning and end of a run

    def start(
        self,
        owner: ClaimOwner,
        kind: ClaimKind,
        ttl_s: float,
        versions: list[int],
        now: float,
        until: float | None = None,
    ) -> ClaimRun:
        """A new run that guards all its blocks until `settle`. A time of 0 ends at once.

        Args:
            now: when the blocks were claimed.
            until: deadline of a claim made on another server.
        """
        run = ClaimRun(owner, kind, ttl_s, now, versions)
        self._extend(run, now)
        if until is not None:
            run.until = until
        self._enter(run)
        return run

    def renew(self, runs: Iterable[ClaimRun], now: float) -> None:
        """Each guards all its blocks again, for its own time from now on, within the limit that counts from its claim.

        `settle` follows.
        """
        for run in runs:
            self._extend(run, now)
            if not run.live and run.until > now:
                self._enter(run)
            elif run.live:
                unit = PIN if run.kind is ClaimKind.PIN else 1
                for entry in self.existing(run.versions[run.cut :]):
                    self._weigh(entry, unit)
                run.cut = len(run.versions)
                self._enlist(run)

    def end(self, run: ClaimRun, *, cool: bool) -> int:
        """End a run. Its versions stay listed, without a claim.

        Args:
            cool: blocks without another claim or a later use are evicted first.
        Returns: bytes that are unclaimed as a result.
        """
        self.unguard(run)
        unclaimed = 0
        for version in reversed(run.versions):  # of a chain the tail is to leave first
            entry = self._by_version.get(version)
            if entry is None or not entry.shown:
                continue
            if run.live:
                entry.claims -= 1
                if not entry.claims:
                    unclaimed += entry.nbytes
                    if entry.on_ssd:
                        self._reordered(entry)
            if cool and not entry.claims and entry.last_use <= run.at:
                self._cooled(entry)
        if run.live:
            run.owner.account.claims -= 1
        run.live = False
        self._sweep()
        return unclaimed

    def remove(self, run: ClaimRun, versions: Container[int]) -> None:
        """End a run's claim on some of its blocks."""
        unit = PIN if run.kind is ClaimKind.PIN else 1
        for at, version in enumerate(run.versions if run.live else ()):
            entry = self._by_version.get(version)
            if version in versions and entry is not None and entry.shown:
                entry.claims -= 1
                if at < run.cut:
                    self._lift(entry, unit)
                if not entry.claims:
                    self._reordered(entry)
        run.cut = sum([version not in versions for version in run.versions[: run.cut]])
        run.versions = [version for version in run.versions if version not in versions]

    def cool(self, versions: Iterable[int]) -> int:
        """Evict the unclaimed ones of these blocks first. Returns: their number."""
        unclaimed = [entry for entry in self.existing(versions) if not entry.claims]
        for entry in reversed(unclaimed):
            self._cooled(entry)
        return len(unclaimed)

    def unguard(self, run: ClaimRun) -> None:
        """The blocks of a run may leave memory; they stay claimed."""
        unit = PIN if run.kind is ClaimKind.PIN else 1
        for entry in self.existing(reversed(run.versions[: run.cut])):
            if unit == 1 < entry.guards < PIN:
                entry.guards -= 1  # another run guards it, as mostly: its bytes count as before
            else:
                self._lift(entry, unit)
        run.cut = 0
        self._delist(run)

    def gone(self, entry: Entry) -> None:
        """Forget a removed entry. Runs skip its version."""
        self._weigh(entry, -entry.guards)
        entry.claims = 0
        self._reordered(entry)

    def expire(self, now: float) -> None:
        """End runs whose deadline has passed, a bounded number: the next call continues."""
        due, left = self.due, _EXPIRED_AT_ONCE
        while due and due[0][0] <= now and left > 0:
            _until, number, run = due[0]
            if run.live and run.until > now:
                heapreplace(due, (run.until, number, run))
                continue
            heappop(due)
            if run.live:
                left -= len(run.versions)
                self.end(run, cool=False)

    # Room

    def give_up(self, wanted: Callable[[Entry], bool], account: Account | None = None) -> Entry | None:
        """End the protection of one retained entry, so that it may leave memory: the nearest deadline first.

        Args:
            wanted: which entries are of use.
            account: whose entry; None = any.
        """
        if account is not None:
            return self._give_up_of(self.owner_of(account), wanted)
        for owner in sorted([one for one in self._owners.values() if one.order], key=lambda one: one.order[0][0]):
            entry = self._give_up_of(owner, wanted)
            if entry is not None:
                return entry
        return None

    def _give_up_of(self, owner: ClaimOwner, wanted: Callable[[Entry], bool]) -> Entry | None:
        order = owner.order
        passed: list[tuple[float, int, ClaimRun]] = []
        found: Entry | None = None
        while order and found is None:
            until, number, run = order[0]
            if not run.cut or run.kind is ClaimKind.PIN:
                heappop(order)
                run.owner.retains.pop(run, None)
            elif run.until > until:
                heapreplace(order, (run.until, number, run))
            else:
                found = self._give_up(run, wanted)
                if found is None and run.cut:
                    passed.append(heappop(order))
        for item in passed:
            heappush(order, item)
        if found is not None:
            self._counters.claims_broken += 1
        return found

    def _give_up(self, run: ClaimRun, wanted: Callable[[Entry], bool]) -> Entry | None:
        versions = run.versions
        for at in range(run.cut - 1, -1, -1):
            entry = self._by_version.get(versions[at])
            if entry is not None and entry.shown and not wanted(entry):
                continue
            last = run.cut - 1
            versions[at], versions[last] = versions[last], versions[at]
            if self._shorten(run):
                return entry
        return None

    # Budgets

    def settle(self, owner: ClaimOwner, new: Sequence[ClaimRun] = ()) -> list[ClaimRun]:
        """Clip the namespace's own oldest claims until it is within its limits, and all pins within their budget.

        Pins beyond their budget become ordinary claims.

        Args:
            new: the runs that were just started.
        Returns: further runs, of the blocks of new pins that are beyond the budget.
        """
        rest: list[ClaimRun] = []
        while owner.pins and self._pins_over(owner):
            run = next(iter(owner.pins))
            if run in new:
                rest += self._split(run)
            else:
                self._demote(run)
        while owner.retains and self._retains_over(owner):
            run = next(iter(owner.retains))
            while run.cut and self._retains_over(owner):
                self._shorten(run)
            if not run.cut:
                self._delist(run)
        return rest

    def _pins_over(self, owner: ClaimOwner) -> bool:
        limit = owner.limits.pin_bytes
        return self.pinned_bytes > self._pin_budget or (limit is not None and owner.account.pinned_bytes > limit)

    def _retains_over(self, owner: ClaimOwner) -> bool:
        limit = owner.limits.retain_bytes
        return owner.account.retained_bytes > (
            self._retain_budget if limit is None else min(self._retain_budget, limit)
        )

    def _demote(self, run: ClaimRun) -> None:
        self._delist(run)
        for entry in self.existing(run.versions[: run.cut]):
            self._weigh(entry, 1)
            self._lift(entry, PIN)
        run.kind = ClaimKind.RETAIN
        self._enlist(run)

    def _split(self, run: ClaimRun) -> list[ClaimRun]:
        """Keep as many of its leading blocks pinned as the budget allows; the others get a run of their own."""
        while run.cut and self._pins_over(run.owner):
            self._shorten(run)
        rest = ClaimRun(run.owner, ClaimKind.RETAIN, run.ttl_s, run.since, run.versions[run.cut :])
        rest.at, rest.until = run.at, run.until
        del run.versions[run.cut :]
        for entry in self.existing(rest.versions):
            entry.claims -= 1  # counted again in a moment: never unclaimed in between
        self._enter(rest, again=True)
        if not run.cut:
            self._delist(run)
        return [rest]

    # Inside

    def _enter(self, run: ClaimRun, *, again: bool = False) -> None:
        unit, added = PIN if run.kind is ClaimKind.PIN else 1, 0
        for entry in map(self._by_version.get, run.versions):
            if entry is None or not entry.shown:
                continue
            entry.claims += 1
            if unit == 1:
                if not entry.guards:
                    added += entry.nbytes
                entry.guards += 1
            else:
                self._weigh(entry, unit)
            if entry.on_ssd and entry.claims == 1 and not again:
                self._reordered(entry)
        self.retained_bytes += added
        run.owner.account.retained_bytes += added
        run.cut, run.live = len(run.versions), True
        run.owner.account.claims += 1
        self._numbers += 1
        heappush(self.due, (run.until, self._numbers, run))
        self._enlist(run)

    def _sweep(self) -> None:
        """Drop the items of ended runs from both heaps once they are the greater part."""
        if len(self.due) > self._sweep_at:
            self.due[:] = [(run.until, number, run) for _until, number, run in self.due if run.live]
            heapify(self.due)
            for owner in self._owners.values():
                order = owner.order
                owner.order = [(run.until, number, run) for _until, number, run in order if run in owner.retains]
                heapify(owner.order)
            self._sweep_at = 2 * len(self.due) + _SWEEP_AT

    def _extend(self, run: ClaimRun, now: float) -> None:
        limit = run.owner.limits.max_ttl_s
        longest = self._max_ttl_s if limit is None else min(limit, self._max_ttl_s)
        ttl_s = run.ttl_s if run.ttl_s > 0 else 0.0  # neither negative nor NaN
        run.until = max(run.until, min(now + ttl_s, run.since + longest))
        run.at = now

    def _enlist(self, run: ClaimRun) -> None:
        """Count it among the guarding runs of its namespace, as the latest."""
        owner = run.owner
        if run.kind is ClaimKind.PIN:
            owner.pins[run] = None
            owner.pins.move_to_end(run)
            return
        if run not in owner.retains:
            self._numbers += 1
            heappush(owner.order, (run.until, self._numbers, run))
        owner.retains[run] = None
        owner.retains.move_to_end(run)

    def _delist(self, run: ClaimRun) -> None:
        run.owner.pins.pop(run, None)
        run.owner.retains.pop(run, None)

    def _shorten(self, run: ClaimRun) -> bool:
        """End the guard of the last guarded block. Returns: whether it is unguarded now."""
        run.cut -= 1
        entry = self._by_version.get(run.versions[run.cut])
        if entry is None or not entry.shown:
            return False
        return self._lift(entry, PIN if run.kind is ClaimKind.PIN else 1)

    def _lift(self, entry: Entry, unit: int) -> bool:
        before = entry.guards
        self._weigh(entry, -unit)
        if not entry.guards or before >= PIN > entry.guards:
            self._freed(entry)
        return not entry.guards

    def _weigh(self, entry: Entry, change: int) -> None:
        before, account, nbytes = entry.guards, entry.account, entry.nbytes
        entry.guards = after = before + change
        if before >= PIN:
            account.pinned_bytes -= nbytes
            self.pinned_bytes -= nbytes
        elif before:
            account.retained_bytes -= nbytes
            self.retained_bytes -= nbytes
        if after >= PIN:
            account.pinned_bytes += nbytes
            self.pinned_bytes += nbytes
        elif after:
            account.retained_bytes += nbytes
            self.retained_bytes += nbytes

    def existing(self, versions: Iterable[int]) -> Iterable[Entry]:
        """Entries of these versions that lookups find."""
        for entry in map(self._by_version.get, versions):
            if entry is not None and entry.shown:
                yield entry
