"""Claims and hints beside everything else that `MemoryMachine` does, against a naive model of who claims what."""

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from serving.kvpool.core.entry import GrantStatus, Kind, Space
from serving.kvpool.core.guards import PIN
from serving.kvpool.core.memory_manager import MemoryManager
from serving.kvpool.core.server_settings import ClaimSettings
from serving.values.kv_hints import BlockClaim, ClaimedBlocks, ClaimKind, HintAction, HintStatus, HintVerb
from tests.kvpool.core.ledger_driver import LedgerDriver
from tests.kvpool.core.memory_machine import CLIENTS, HASHES, LUCK, SIZES, SPACES, MemoryMachine, name

SESSIONS = ["s1", "s2", "s3", "s4"]
BRANCHES = ["", "a", "b"]
TTLS = [0.0, 2.0, 15.0, 1e300, float("inf")]
Blocks = Sequence[int]


@dataclass
class ModelRun:
    """Versions, and from when to when they are claimed."""

    versions: list[int]
    ttl_s: float
    since: float
    until: float


@dataclass
class ModelBranch:
    leaf: str = ""
    runs: list[ModelRun] = field(default_factory=list)


class ClaimMachine(MemoryMachine):
    """`sessions`: namespace -> session -> branch, those claimed longest ago first."""

    CLAIMS = ClaimSettings(retain_share=0.5, max_ttl_s=20.0, sessions=3, branches=2)

    def start(self, driver: LedgerDriver) -> None:
        super().start(driver)
        self.sessions: dict[str, dict[str, dict[str, ModelBranch]]] = {}

    # No allocation fails that would succeed without claims

    @rule(
        space=st.sampled_from(SPACES),
        items=st.lists(st.tuples(HASHES, SIZES), min_size=1, max_size=4),
        client=CLIENTS,
        kind=st.sampled_from([Kind.CONTEXT, Kind.CONTEXT, Kind.MODEL]),
    )
    def reserve(self, space: Space, items: list[tuple[int, int]], client: int, kind: Kind) -> None:
        for item in items:
            self.reserve_one(space, item, client, kind)

    def reserve_one(self, space: Space, item: tuple[int, int], client: int, kind: Kind) -> None:
        wanted = [(name(item[0]), item[1])]
        (without,) = unclaimed(self.manager).reserve(space, wanted, client, self.now, kind)
        pinned = self.manager.stats().pinned_bytes
        super().reserve(space, [item], client, kind)
        written = self.manager._inventory.of(space).get(wanted[0][0])
        if without.status is GrantStatus.GRANTED and not pinned:
            assert written is not None, "an allocation failed that succeeds without claims"
            assert written.writer == client

    # Claims

    @rule(
        space=st.sampled_from(SPACES),
        session=st.sampled_from(SESSIONS),
        branch=st.sampled_from(BRANCHES),
        leaf=st.sampled_from(["l1", "l2", "l3"]),
        blocks=st.lists(st.integers(0, 9), max_size=6, unique=True),
        head=st.integers(0, 6),
        kinds=st.tuples(st.sampled_from(ClaimKind), st.sampled_from(ClaimKind)),
        ttls=st.tuples(st.sampled_from(TTLS), st.sampled_from(TTLS)),
    )
    def claim(
        self,
        space: Space,
        session: str,
        branch: str,
        leaf: str,
        blocks: Blocks,
        head: int,
        kinds: tuple[ClaimKind, ClaimKind],
        ttls: tuple[float, float],
    ) -> None:
        parts = (blocks[:head], blocks[head:])
        runs = tuple(
            ClaimedBlocks(kind, ttl_s, tuple(name(index) for index in part))
            for kind, ttl_s, part in zip(kinds, ttls, parts, strict=True)
            if part
        )
        found = [(ttl_s, self.versions(space, part)) for ttl_s, part in zip(ttls, parts, strict=True) if part]
        outcome = self.manager.claims.claim(space, BlockClaim(session, branch, leaf, runs), self.now)
        known = self.sessions.get(space.namespace, {}).get(session, {})
        if not any(versions for _ttl_s, versions in found) and branch not in known:
            assert outcome.status is HintStatus.MISSING
            return
        one = self.opened(space.namespace, session, branch)
        if one.leaf != leaf:
            one.leaf, one.runs = leaf, []
        self.renew(one)
        one.runs += [self.begun(ttl_s, versions) for ttl_s, versions in found if versions]
        assert outcome.wanted == len(blocks)
        assert outcome.status in (HintStatus.ACCEPTED, HintStatus.CLIPPED)

    @rule(
        namespace=st.sampled_from(["red", "blue"]),
        verb=st.sampled_from(HintVerb),
        session=st.sampled_from(SESSIONS),
        branch=st.sampled_from([None, *BRANCHES]),
        blocks=st.lists(st.integers(0, 9), max_size=3, unique=True),
        named=st.booleans(),
        ttl_s=st.sampled_from(TTLS),
    )
    def hint(
        self,
        namespace: str,
        verb: HintVerb,
        session: str,
        branch: str | None,
        blocks: Blocks,
        named: bool,
        ttl_s: float,
    ) -> None:
        hashes = tuple(name(index) for index in blocks) if named else ()
        versions = [v for space in SPACES if space.namespace == namespace for v in self.versions(space, blocks)]
        before = {view.version for view in self.manager.entries()}
        outcome = self.manager.claims.hint(namespace, HintAction(verb, session, branch, hashes, ttl_s), self.now)
        branches = self.sessions.get(namespace, {}).get(session, {})
        chosen = {key: one for key, one in branches.items() if branch in (None, key)}
        if verb in (HintVerb.RETAIN, HintVerb.PIN):
            if hashes and versions:
                self.opened(namespace, session, branch or "").runs.append(self.begun(ttl_s, versions))
            for one in () if hashes else chosen.values():
                all_of_it = list(dict.fromkeys(version for run in one.runs for version in run.versions))
                one.runs = [self.begun(ttl_s, all_of_it)] if all_of_it else []
        elif verb is HintVerb.TOUCH:
            for one in chosen.values():
                self.renew(one)
            if any(one.runs for one in chosen.values()):
                self.last(namespace, session)
        elif verb is HintVerb.RELEASE and hashes:
            for run in [run for one in chosen.values() for run in one.runs]:
                run.versions = [version for version in run.versions if version not in versions]
        elif verb is HintVerb.RELEASE:
            for key in chosen:
                del branches[key]
            if not branches:
                self.sessions.get(namespace, {}).pop(session, None)
        elif verb is HintVerb.DEMOTE and not self.settings.ssd_bytes:
            assert outcome.status in (HintStatus.REJECTED, HintStatus.MISSING)
        if verb not in (HintVerb.PREFETCH, HintVerb.DEMOTE):  # these make room, the latter on SSD
            assert before == {view.version for view in self.manager.entries()}, "a hint has removed a block"

    @rule(namespace=st.sampled_from(["red", "blue"]), luck=LUCK)
    def delete_namespace(self, namespace: str, luck: int) -> None:
        super().delete_namespace(namespace, luck)
        if not luck:
            self.sessions.pop(namespace, None)

    # The naive model

    def versions(self, space: Space, blocks: Blocks) -> list[int]:
        known = self.manager._inventory.of(space)
        found = [known.get(name(index)) for index in blocks]
        return [entry.version for entry in found if entry is not None and entry.shown]

    def opened(self, namespace: str, session: str, branch: str) -> ModelBranch:
        sessions = self.sessions.setdefault(namespace, {})
        if session not in sessions:
            while len(sessions) >= self.CLAIMS.sessions:
                del sessions[next(iter(sessions))]
            sessions[session] = {}
        self.last(namespace, session)
        branches = sessions[session]
        if branch not in branches:
            while len(branches) >= self.CLAIMS.branches:
                del branches[next(iter(branches))]
        one = branches.pop(branch, ModelBranch())
        branches[branch] = one
        return one

    def last(self, namespace: str, session: str) -> None:
        sessions = self.sessions[namespace]
        sessions[session] = sessions.pop(session)

    def begun(self, ttl_s: float, versions: list[int]) -> ModelRun:
        return ModelRun(versions, ttl_s, self.now, self.now + min(ttl_s, self.CLAIMS.max_ttl_s))

    def renew(self, branch: ModelBranch) -> None:
        for run in branch.runs:
            run.until = max(run.until, min(self.now + run.ttl_s, run.since + self.CLAIMS.max_ttl_s))

    def check_all(self) -> None:
        super().check_all()
        self.claims_are_those_of_the_model()

    @invariant()
    def claims_are_those_of_the_model(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.claims.expire(self.now)
        runs = [
            run
            for sessions in self.sessions.values()
            for branches in sessions.values()
            for branch in branches.values()
            for run in branch.runs
            if run.until > self.now
        ]
        claims = Counter(version for run in runs for version in run.versions)
        inventory = self.manager._inventory
        for version, entry in inventory.by_version.items():
            assert entry.claims == (claims[version] if entry.shown else 0)
            assert entry.guards % PIN + entry.guards // PIN <= entry.claims
        capacity = inventory.allocator.capacity_bytes
        assert inventory.guards.pinned_bytes <= self.CLAIMS.pin_share * capacity
        for account in inventory.accounts.accounts().values() if not self.CLAIMS.pin_share else ():
            assert account.retained_bytes <= self.CLAIMS.retain_share * capacity
        for namespace, sessions in self.sessions.items():
            facts = self.manager.claims.sessions(namespace, 100, self.now)
            assert [one.session for one in facts] == list(reversed(sessions))


class PinMachine(ClaimMachine):
    """The same with room for pins."""

    CLAIMS = ClaimSettings(retain_share=0.5, pin_share=0.3, max_ttl_s=20.0, sessions=3, branches=2)

    @rule(
        space=st.sampled_from(SPACES),
        items=st.lists(st.tuples(HASHES, SIZES), min_size=1, max_size=4),
        client=CLIENTS,
        kind=st.sampled_from([Kind.CONTEXT, Kind.CONTEXT, Kind.MODEL]),
    )
    def reserve(self, space: Space, items: list[tuple[int, int]], client: int, kind: Kind) -> None:
        """Pins within their budget may cost an allocation, but never leave."""
        inventory = self.manager._inventory
        pinned = [e for e in inventory.by_version.values() if e.guards >= PIN and e.in_dram and not e.spilling]
        MemoryMachine.reserve(self, space, items, client, kind)
        if not self.quotas.get(space.namespace):
            assert all(entry.in_dram and entry.shown for entry in pinned), "a pinned block has left"

    @rule(wanted=SIZES, luck=LUCK)
    def everything_frees_up(self, wanted: int, luck: int) -> None:
        for namespace in () if luck else list(self.sessions):
            self.manager.claims.book.drop(namespace)
            del self.sessions[namespace]
        super().everything_frees_up(wanted, luck)


def unclaimed(manager: MemoryManager) -> MemoryManager:
    """A copy of a ledger in which nobody claims anything."""
    copy = deepcopy(manager)
    for namespace in copy.claims.book.namespaces():
        copy.claims.book.drop(namespace)
    return copy
