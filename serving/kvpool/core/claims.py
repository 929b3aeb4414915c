"""Claims by session: what a namespace's conversations need again, and what they do not need any more.

    namespace ─► session ─► branch ─► newest leaf ─► runs of blocks (`guards.py`)

Only the latest leaf of a branch counts, one turn of the conversation with all blocks before it: what a newer leaf lacks
is released. A session keeps its list of blocks after its claims have expired, for later actions, until it is
released, or forgotten because the namespace has too many.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf

from serving.ids import BlockHash
from serving.kvpool.core.claim_runs import ClaimLimits, ClaimOwner, ClaimRun
from serving.kvpool.core.entry import Entry
from serving.kvpool.core.guards import Guards
from serving.kvpool.core.manager_stats import Counters
from serving.kvpool.core.quotas import Account
from serving.kvpool.core.server_settings import ClaimSettings
from serving.values.kv_hints import BlockClaim, ClaimedBlocks, ClaimKind, HintOutcome, HintStatus

_RUNS = 1024
"""Runs of one branch: claims of named blocks would add up without end."""
_INDEX_S = 10.0
"""For so long an index of claims by entry is used, during a migration."""
_NO_LIMITS = ClaimLimits()
PIN_BUDGET = "beyond the budget for pins; retained instead"
RETAIN_BUDGET = "beyond the budget for claims"


class Branch:
    """A branch of a session with its latest leaf."""

    __slots__ = ("leaf", "runs")

    def __init__(self) -> None:
        self.leaf = ""
        self.runs: list[ClaimRun] = []


class ClaimSession:
    """A session; `outcome` is that of its latest claim or action."""

    __slots__ = ("branches", "outcome")

    def __init__(self) -> None:
        self.branches: OrderedDict[str, Branch] = OrderedDict()
        self.outcome = ""

    def runs(self, branch: str | None = None) -> list[ClaimRun]:
        """Runs of one branch, or of all."""
        chosen = self.branches.items()
        return [run for name, one in chosen if branch in (None, name) for run in one.runs]


class _Tenant:
    __slots__ = ("owner", "sessions")

    def __init__(self, owner: ClaimOwner, limits: ClaimLimits) -> None:
        self.owner = owner
        owner.limits = limits
        self.sessions: OrderedDict[str, ClaimSession] = OrderedDict()


class ClaimBook:
    """All sessions of one server, by namespace."""

    def __init__(self, settings: ClaimSettings, counters: Counters, guards: Guards) -> None:
        self._guards = guards
        self._counters = counters
        self._most_sessions, self._most_branches = max(1, settings.sessions), max(1, settings.branches)
        self._limits: Mapping[str, ClaimLimits] = {}
        self._tenants: dict[str, _Tenant] = {}
        self._index: dict[int, list[tuple[ClaimRun, tuple[str, str, str]]]] = {}
        self._indexed_until = -inf

    # Claims

    def claim(
        self, namespace: str, account: Account, claim: BlockClaim, known: Mapping[BlockHash, Entry], now: float
    ) -> HintOutcome:
        """Claim blocks for a leaf, and release what an older leaf of the branch alone has claimed.

        Args:
            known: entries by hash; absent ones are passed over.
        """
        wanted = sum([len(run.hashes) for run in claim.runs])
        found = [(run.kind, run.ttl_s, versions_of(run.hashes, known)) for run in claim.runs]
        session = self.session(namespace, claim.session)
        if not any(versions for _kind, _ttl_s, versions in found) and (
            session is None or claim.branch not in session.branches
        ):
            return HintOutcome(HintStatus.MISSING, 0, wanted)
        session, branch = self._open(namespace, account, claim.session, claim.branch)
        old: list[ClaimRun] = []
        if branch.leaf != claim.leaf:
            old, branch.runs, branch.leaf = branch.runs, [], claim.leaf
        self._guards.renew(branch.runs, now)
        owner = self._tenants[namespace].owner
        new = [self._guards.start(owner, kind, ttl_s, versions, now) for kind, ttl_s, versions in found if versions]
        for run in old:  # after the new ones: what both have is never unclaimed
            self._counters.superseded_bytes += self._guards.end(run, cool=True)
            run.versions = []
        return self._settle(namespace, session, branch, new, wanted, "claim")

    def take_over(
        self, namespace: str, account: Account, claim: BlockClaim, known: Mapping[BlockHash, Entry], now: float
    ) -> HintOutcome:
        """Claim blocks moved here from another server, with their deadlines."""
        wanted = sum([len(run.hashes) for run in claim.runs])
        session = self.session(namespace, claim.session)
        branch = session.branches.get(claim.branch) if session is not None else None
        found = [(run, versions) for run in claim.runs if (versions := versions_of(run.hashes, known))]
        if not found or (branch is not None and branch.leaf != claim.leaf):
            return HintOutcome(HintStatus.MISSING, 0, wanted)
        session, branch = self._open(namespace, account, claim.session, claim.branch)
        branch.leaf = claim.leaf
        owner = self._tenants[namespace].owner
        new = [
            self._guards.start(owner, run.kind, run.ttl_s, versions, now - run.age_s, now + (run.left_s or 0.0))
            for run, versions in found
        ]
        return self._settle(namespace, session, branch, new, wanted, "moved")

    def claims_of(self, versions: Collection[int], hashes: Mapping[int, BlockHash], now: float) -> list[BlockClaim]:
        """Live claims of some entries, of any namespace. O(all claimed blocks), once in a while: see `_index_of`."""
        runs: dict[tuple[str, str, str], list[ClaimedBlocks]] = {}
        for run, place in self._index_of(versions, now):
            mine = [hashes[version] for version in run.versions if version in hashes] if run.live else []
            if mine:
                moved = ClaimedBlocks(run.kind, run.ttl_s, tuple(mine), run.until - now, now - run.since)
                runs.setdefault(place, []).append(moved)
        return [BlockClaim(*place, tuple(own), moved=True) for place, own in runs.items()]

    def _index_of(self, versions: Collection[int], now: float) -> Iterable[tuple[ClaimRun, tuple[str, str, str]]]:
        """Runs that may contain these entries. A claim made since the index was built is repeated."""
        if now >= self._indexed_until:
            self._index = {}
            self._indexed_until = now + _INDEX_S
            for tenant in self._tenants.values():
                for name, session in tenant.sessions.items():
                    for key, branch in session.branches.items():
                        for run in branch.runs:
                            for version in run.versions if run.live else ():
                                self._index.setdefault(version, []).append((run, (name, key, branch.leaf)))
        return dict(pair for version in versions for pair in self._index.get(version, ())).items()

    def retain(
        self,
        namespace: str,
        account: Account,
        name: str,
        branch: str | None,
        kind: ClaimKind,
        ttl_s: float,
        entries: Iterable[Entry],
        now: float,
    ) -> HintOutcome:
        """Claim entries for a session in addition to its others; without entries, claim all of its blocks again.

        Args:
            branch: None = all branches, or the trunk for entries.
        """
        versions = [entry.version for entry in entries]
        if versions:
            session, one = self._open(namespace, account, name, branch or "")
            new = [self._guards.start(self._tenants[namespace].owner, kind, ttl_s, versions, now)]
            return self._settle(namespace, session, one, new, len(versions), kind.value)
        known = self.session(namespace, name)
        outcomes: list[HintOutcome] = []
        for key, one in list(known.branches.items()) if known is not None else ():
            if known is None or branch not in (None, key):
                continue
            old = one.runs
            versions = list(dict.fromkeys([version for run in old for version in run.versions]))
            new = [self._guards.start(self._tenants[namespace].owner, kind, ttl_s, versions, now)]
            one.runs = []
            self._forget(old)
            outcomes.append(self._settle(namespace, known, one, new, len(versions), kind.value))
        return summed(outcomes)

    def touch(self, namespace: str, name: str, branch: str | None, now: float) -> HintOutcome:
        """Renew the claims of a session, each for its own time."""
        session = self.session(namespace, name)
        runs = session.runs(branch) if session is not None else []
        if session is None or not runs:
            return HintOutcome(HintStatus.MISSING)
        self._guards.renew(runs, now)
        self._guards.settle(self._tenants[namespace].owner)
        self._tenants[namespace].sessions.move_to_end(name)
        blocks, wanted = sum([run.cut for run in runs if run.live]), sum([len(run.versions) for run in runs])
        status = HintStatus.ACCEPTED if blocks == wanted else HintStatus.CLIPPED
        return noted(session, "touch", HintOutcome(status, blocks, wanted, "" if blocks == wanted else RETAIN_BUDGET))

    def release(self, namespace: str, name: str, branch: str | None) -> HintOutcome:
        """End a session's claims and forget it, or one branch of it."""
        session = self.session(namespace, name)
        runs = session.runs(branch) if session is not None else []
        if session is None or (branch is not None and branch not in session.branches):
            return HintOutcome(HintStatus.MISSING)
        blocks = sum([len(run.versions) for run in runs])
        for run in runs:
            run.at = inf  # whoever else has used its blocks
            self._guards.end(run, cool=True)
            run.versions = []
        for key in [branch] if branch is not None else list(session.branches):
            del session.branches[key]
        if not session.branches:
            del self._tenants[namespace].sessions[name]
        return HintOutcome(HintStatus.ACCEPTED, blocks, blocks)

    def release_blocks(self, namespace: str, name: str, branch: str | None, entries: Iterable[Entry]) -> int:
        """End a session's claims on some blocks only; those left without a claim are evicted first.

        Returns: number of blocks without a claim.
        """
        versions = {entry.version: None for entry in entries}
        session = self.session(namespace, name)
        for run in session.runs(branch) if session is not None else ():
            self._guards.remove(run, versions)
        return self._guards.cool(versions)

    def drop(self, namespace: str) -> None:
        """Forget all sessions of a namespace."""
        tenant = self._tenants.pop(namespace, None)
        for session in tenant.sessions.values() if tenant is not None else ():
            self._forget(session.runs())

    # Sessions

    def session(self, namespace: str, name: str) -> ClaimSession | None:
        """A session, if it is known."""
        tenant = self._tenants.get(namespace)
        return None if tenant is None else tenant.sessions.get(name)

    def sessions(self, namespace: str) -> Iterator[tuple[str, ClaimSession]]:
        """Sessions of a namespace, the latest claim first."""
        tenant = self._tenants.get(namespace)
        return iter(()) if tenant is None else reversed(tenant.sessions.items())

    def namespaces(self) -> list[str]:
        """Namespaces with sessions."""
        return [name for name, tenant in self._tenants.items() if tenant.sessions]

    def runs(self) -> Iterator[ClaimRun]:
        """All runs, for `check`."""
        for tenant in self._tenants.values():
            for session in tenant.sessions.values():
                yield from session.runs()

    def set_limits(self, limits: Mapping[str, ClaimLimits]) -> None:
        """From now on these hold, by namespace; what exceeds them is clipped. Deadlines stay as they are."""
        self._limits = dict(limits)
        for namespace, tenant in self._tenants.items():
            tenant.owner.limits = limits.get(namespace, _NO_LIMITS)
            self._guards.settle(tenant.owner)

    # Inside

    def _open(self, namespace: str, account: Account, name: str, branch: str) -> tuple[ClaimSession, Branch]:
        tenant = self._tenants.get(namespace)
        if tenant is None:
            tenant = self._tenants[namespace] = _Tenant(
                self._guards.owner_of(account), self._limits.get(namespace, _NO_LIMITS)
            )
        session = tenant.sessions.get(name)
        if session is None:
            while len(tenant.sessions) >= self._most_sessions:
                self._forget(tenant.sessions.popitem(last=False)[1].runs())
            session = tenant.sessions[name] = ClaimSession()
        tenant.sessions.move_to_end(name)
        one = session.branches.get(branch)
        if one is None:
            while len(session.branches) >= self._most_branches:
                self._forget(session.branches.popitem(last=False)[1].runs)
            one = session.branches[branch] = Branch()
        session.branches.move_to_end(branch)
        return session, one

    def _settle(
        self, namespace: str, session: ClaimSession, branch: Branch, new: list[ClaimRun], wanted: int, what: str
    ) -> HintOutcome:
        pins = [run for run in new if run.kind is ClaimKind.PIN]
        asked = sum([len(run.versions) for run in new])
        rest = self._guards.settle(self._tenants[namespace].owner, pins)
        branch.runs += [run for run in (*new, *rest) if run.versions]
        self._forget(branch.runs[:-_RUNS])
        del branch.runs[:-_RUNS]
        blocks, reason = sum([run.cut for run in new if run.live]), RETAIN_BUDGET
        if rest:
            reason = PIN_BUDGET
        status = HintStatus.ACCEPTED if blocks == asked else HintStatus.CLIPPED
        return noted(session, what, HintOutcome(status, blocks, wanted, "" if blocks == asked else reason))

    def _forget(self, runs: Iterable[ClaimRun]) -> None:
        for run in runs:
            self._guards.end(run, cool=False)
            run.versions = []  # a heap may keep the run for a while


def versions_of(hashes: Iterable[BlockHash], known: Mapping[BlockHash, Entry]) -> list[int]:
    """Versions of the entries that are there, in this order."""
    found = map(known.get, hashes)
    return [entry.version for entry in found if entry is not None and entry.shown]


def summed(outcomes: list[HintOutcome]) -> HintOutcome:
    """Result of one action on several branches."""
    if not outcomes:
        return HintOutcome(HintStatus.MISSING)
    worst = next((one for one in outcomes if one.status is not HintStatus.ACCEPTED), outcomes[0])
    blocks, wanted = sum([one.blocks for one in outcomes]), sum([one.wanted for one in outcomes])
    return HintOutcome(worst.status, blocks, wanted, worst.reason)


def noted(session: ClaimSession, what: str, outcome: HintOutcome) -> HintOutcome:
    """The outcome, kept as the session's latest."""
    session.outcome = f"{what}: {outcome.status.value}, {outcome.blocks} of {outcome.wanted} blocks"
    return outcome
