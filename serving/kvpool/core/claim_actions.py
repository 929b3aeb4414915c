"""Claims and hints on one memory server: changes of claims, and moves of a session's blocks between tiers."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from serving.kvpool.core.claim_runs import ClaimLimits, ClaimRun
from serving.kvpool.core.claims import ClaimBook, noted
from serving.kvpool.core.entry import Entry, Space
from serving.kvpool.core.inventory import Inventory
from serving.kvpool.core.inventory_check import check_guards
from serving.kvpool.core.promotions import Promotions
from serving.kvpool.core.spills import Spills, SpillStart
from serving.values.kv_hints import (
    BlockClaim,
    ClaimKind,
    HintAction,
    HintOutcome,
    HintStatus,
    HintVerb,
    SessionFacts,
)

_LOADS_WAITING = 256
"""Loads from SSD that may wait for room; a hint starts no more than these."""
_COPIED_S = 60.0
"""Claims of at least this time are copied to SSD."""
_MISSING = HintOutcome(HintStatus.MISSING)


class Claims:
    """The claims of one server; `now` as in `MemoryManager`."""

    def __init__(self, inventory: Inventory, spills: Spills, promotions: Promotions) -> None:
        self._inventory = inventory
        self._guards = inventory.guards
        self._spills = spills
        self._promotions = promotions
        self.book = ClaimBook(inventory.settings.claims, inventory.counters, inventory.guards)

    def claim(self, space: Space, claim: BlockClaim, now: float) -> HintOutcome:
        """Claim blocks for a leaf of a session's branch. What an older leaf alone has claimed leaves first from now on.

        With an SSD tier, blocks claimed for long are copied there while the disk is idle. Copies of those that are back
        in use in seconds would only cost other blocks their place.
        """
        self.expire(now)
        self._inventory.recount()
        known = self._inventory.of(space)
        account = self._inventory.accounts.of(space.namespace)
        act = self.book.take_over if claim.moved else self.book.claim
        outcome = act(space.namespace, account, claim, known, now)
        if self._inventory.settings.ssd_bytes:
            found = (known.get(hash) for run in claim.runs if run.ttl_s >= _COPIED_S for hash in run.hashes)
            self._spills.copy_when_idle(entry for entry in found if entry is not None)
            self._spills.catch_up()
        return outcome

    def hint(self, namespace: str, action: HintAction, now: float) -> HintOutcome:
        """Carry out one action on the session's blocks that are here, or on the named ones.

        Never on those of another namespace.
        """
        self.expire(now)
        match action.verb:
            case HintVerb.RETAIN | HintVerb.PIN:
                return self._retain(namespace, action, now)
            case HintVerb.TOUCH:
                return self.book.touch(namespace, action.session, action.branch, now)
            case HintVerb.RELEASE:
                return self._release(namespace, action)
            case HintVerb.DEMOTE:
                return self._demote(self._meant(namespace, action), namespace, action, now)
            case HintVerb.PREFETCH:
                return self._prefetch(self._meant(namespace, action), namespace, action, now)

    def sessions(self, namespace: str, limit: int, now: float) -> tuple[SessionFacts, ...]:
        """Sessions of a namespace, the latest claim first, at most `limit`. O(their blocks)."""
        return tuple(
            SessionFacts(
                name,
                tuple(session.branches),
                *self._bytes_of(session.runs()),
                max([max(0.0, run.until - now) for run in session.runs() if run.live], default=0.0),
                session.outcome,
            )
            for name, session in islice(self.book.sessions(namespace), limit)
        )

    def of(self, versions: Sequence[int], now: float) -> tuple[BlockClaim, ...]:
        """Claims of entries that are about to move to another server."""
        self.expire(now)
        claimed = {entry.version: entry.hash for entry in self._guards.existing(versions) if entry.claims}
        return tuple(self.book.claims_of(claimed, claimed, now)) if claimed else ()

    def set_limits(self, limits: Mapping[str, ClaimLimits]) -> None:
        """Limits of namespaces; absent = only those of the server."""
        self.book.set_limits(limits)

    # Time

    @property
    def next_due(self) -> float | None:
        """No claim ends by itself before this."""
        return self._guards.next_due

    def expire(self, now: float) -> None:
        """End claims whose deadline has passed."""
        due = self._guards.next_due
        if due is not None and due <= now:
            self._guards.expire(now)

    def check(self) -> None:
        """Prove that claims agree with the entries. O(entries). Raises: LedgerError if not."""
        check_guards(self._inventory, self.book.runs())

    # Actions

    def _retain(self, namespace: str, action: HintAction, now: float) -> HintOutcome:
        kind = ClaimKind.PIN if action.verb is HintVerb.PIN else ClaimKind.RETAIN
        entries = self._named(namespace, action)
        if action.hashes and not entries:
            return _MISSING
        account = self._inventory.accounts.of(namespace)
        session, branch = action.session, action.branch
        return self.book.retain(namespace, account, session, branch, kind, action.ttl_s, entries, now)

    def _release(self, namespace: str, action: HintAction) -> HintOutcome:
        if not action.hashes:
            return self.book.release(namespace, action.session, action.branch)
        entries = self._named(namespace, action)
        blocks = self.book.release_blocks(namespace, action.session, action.branch, entries)
        status = HintStatus.ACCEPTED if entries else HintStatus.MISSING
        return HintOutcome(status, blocks, len(entries))

    def _demote(self, entries: list[Entry], namespace: str, action: HintAction, now: float) -> HintOutcome:
        if not entries:
            return _MISSING
        if not self._inventory.settings.ssd_bytes:
            return HintOutcome(HintStatus.REJECTED, 0, len(entries), "this server has no SSD tier")
        for run in self._runs(namespace, action):
            self._guards.unguard(run)
        counts = {start: 0 for start in SpillStart}
        used = 0
        for entry in reversed(entries):  # the tail first, as in eviction
            if not entry.in_dram or entry.leaving:
                counts[SpillStart.STARTED] += 1
            elif entry.guards or entry.pinned:
                used += 1
            else:
                counts[self._spills.demote(entry, now)] += 1
        blocks, waiting = counts[SpillStart.STARTED], counts[SpillStart.BUSY]
        status, reason = HintStatus.ACCEPTED, ""
        if used or counts[SpillStart.NO_ROOM]:
            status = HintStatus.CLIPPED
            reason = "the others are in use" if used else "no room on SSD"
        elif waiting:
            status = HintStatus.DEFERRED
        return self._noted(namespace, action, HintOutcome(status, blocks, len(entries), reason))

    def _prefetch(self, entries: list[Entry], namespace: str, action: HintAction, now: float) -> HintOutcome:
        if not entries:
            return _MISSING
        runs = self._runs(namespace, action)
        for run in runs:
            run.at = max(run.at, now)  # a prefetch is no use by somebody else
        self._inventory.touch(entries[::-1], now)
        blocks = waiting = 0
        for entry in entries:
            if not entry.in_dram and not entry.loading and len(self._promotions) < _LOADS_WAITING:
                self._promotions.want(entry, now)
            blocks += entry.in_dram or entry.loading
            waiting += self._promotions.pending(entry.version) and not entry.loading
        status, reason = HintStatus.ACCEPTED, ""
        if blocks + waiting < len(entries):
            status, reason = HintStatus.CLIPPED, "too many loads wait for room"
        elif waiting:
            status = HintStatus.DEFERRED
        return self._noted(namespace, action, HintOutcome(status, blocks, len(entries), reason))

    # Which blocks

    def _runs(self, namespace: str, action: HintAction) -> list[ClaimRun]:
        session = None if action.hashes else self.book.session(namespace, action.session)
        return [] if session is None else session.runs(action.branch)

    def _meant(self, namespace: str, action: HintAction) -> list[Entry]:
        if action.hashes:
            return self._named(namespace, action)
        return self._existing(self._runs(namespace, action))

    def _existing(self, runs: Iterable[ClaimRun]) -> list[Entry]:
        versions = dict.fromkeys([version for run in runs for version in run.versions])
        return list(self._guards.existing(versions))

    def _named(self, namespace: str, action: HintAction) -> list[Entry]:
        """The named blocks, of every layout that the namespace has."""
        found: dict[int, Entry] = {}
        for space, known in self._inventory.spaces().items():
            if space.namespace == namespace:
                for hash in action.hashes:
                    entry = known.get(hash)
                    if entry is not None and entry.shown:
                        found[entry.version] = entry
        return list(found.values())

    def _bytes_of(self, runs: Iterable[ClaimRun]) -> tuple[int, int]:
        entries = self._existing(runs)
        dram = sum([entry.nbytes for entry in entries if entry.in_dram])
        return dram, sum([entry.nbytes for entry in entries]) - dram

    def _noted(self, namespace: str, action: HintAction, outcome: HintOutcome) -> HintOutcome:
        session = None if action.hashes else self.book.session(namespace, action.session)
        return outcome if session is None else noted(session, action.verb.value, outcome)
