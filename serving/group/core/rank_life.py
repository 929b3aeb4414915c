"""A rank's own decisions: the holder of its lease, its end without a shell, and the order of its phases.

A rank belongs to the shell with the highest term that it has received. A shell that takes a group over uses the term
after the one that it has read: if two shells try, the rank accepts the first and refuses the other, and also a former
shell that was considered dead but is not. A shell that changes the size of its group raises the term as well, so that
the next shell can identify the latest size.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from serving.errors import GroupError, LedgerError
from serving.ids import ReplicaId
from serving.values.group import RankLease, RankOffer, RankPhase
from serving.values.health import Silence

LEASE_S = 30.0
"""A rank without a shell ends itself after this time [s]: long enough for Serve to start another one, even on a busy
machine."""

_NEXT = {
    RankPhase.LOADING: {RankPhase.OFFERED, RankPhase.FAILED},
    RankPhase.OFFERED: {RankPhase.SERVING, RankPhase.FAILED, RankPhase.LEFT},
    RankPhase.SERVING: {RankPhase.LEAVING},
    RankPhase.LEAVING: {RankPhase.LEFT},
    RankPhase.LEFT: frozenset[RankPhase](),
    RankPhase.FAILED: frozenset[RankPhase](),
}


class RankLife:
    """Lease and phase of one rank. Time is passed in.

    Args:
        founder: lease of the shell that made the rank.
    """

    def __init__(self, founder: RankLease, now: float, lease_s: float = LEASE_S) -> None:
        self.lease = founder
        self.phase = RankPhase.LOADING
        self.problem = ""
        self._heard_at = now
        self._silence = Silence(lease_s, now)

    def hold(self, asker: RankLease, now: float) -> bool:
        """Renew a shell's lease, or let it take the rank over. Returns: whether the shell holds the rank now."""
        if (asker.term, asker.shell) != (self.lease.term, self.lease.shell) and asker.term <= self.lease.term:
            return False
        self.lease, self._heard_at = asker, now
        return True

    def lapsed(self, now: float) -> bool:
        """Whether no shell has renewed the lease for too long. Call it about every second.

        After the rank itself was frozen, its shell has the whole time again.
        """
        self._silence.look(now)
        return self._silence.too_long(self._heard_at, now)

    def enter(self, phase: RankPhase, problem: str = "") -> None:
        """Enter another phase.

        Raises: LedgerError if that cannot follow.
        """
        if phase not in _NEXT[self.phase]:
            raise LedgerError(f"a rank that is {self.phase.value} cannot be {phase.value} next")
        self.phase, self.problem = phase, problem


def outranks(holder: RankLease, own: RankLease) -> bool:
    """Whether a rank belongs to another shell. A holder of a lower term is that of an earlier response."""
    return holder.term > own.term or (holder.term == own.term and holder.shell != own.shell)


def counted_size(before: int, wanted: int, members: int) -> int:
    """Size of a group for status pages: a growing group keeps its size until all newcomers have joined, a shrinking one
    has the new size at once, and a loss or a drain changes nothing.

    Args:
        before: the last result; at first, ranks of the group when this rank was made.
        wanted: target number of ranks; 0 = the group shuts down.
        members: number of ranks that compute together.
    """
    if not wanted:
        return before
    return wanted if members >= wanted else min(before, wanted)


def check_offers(own: RankOffer, most: int, offers: Sequence[RankOffer]) -> None:
    """Check that these offers form a group, possibly an incomplete one, that this rank can join.

    Args:
        most: largest number of ranks.

    Raises: GroupError if a rank is duplicate or out of range, if this rank's offer is missing, if layouts or
        instruction sets differ, or if no offer has experts, or none has attention.
    """
    numbers = sorted(offer.rank for offer in offers)
    if len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(most)):
        raise GroupError(f"a group of at most {most} ranks cannot be formed of {numbers}")
    for part, there in (("experts", [one.role.has_experts for one in offers]),
                        ("attention", [one.role.has_attention for one in offers])):  # fmt: skip
        if not any(there):
            raise GroupError(f"ranks {numbers} have no {part}: a group needs a rank that has them")
    if not any(own.is_of(offer) for offer in offers):
        raise GroupError(f"rank {own.rank} of the group is now another process")
    for offer in offers:
        if offer.layout != own.layout:
            raise GroupError(f"ranks {own.rank} and {offer.rank} have different models or layouts of KV")
        if offer.instructions != own.instructions:
            raise GroupError(
                f"rank {own.rank} computes with {own.instructions}, rank {offer.rank} with {offer.instructions}: their"
                f" results would differ; put the group on processors of one kind"
            )


# Names of ranks and groups in Ray, where a new shell finds what a former one has made.
#
# cloudmatrix-group-<session>-decode#k3jx9a             placement group
# cloudmatrix-rank-<session>-decode#k3jx9a.r0@2         actor: rank 0, the second process of it

_NAME = re.compile(r"cloudmatrix-rank-(?P<session>[^-]+)-(?P<group>[^#]+#[^.]+)\.r(?P<rank>\d+)@(?P<birth>\d+)")


@dataclass(frozen=True, slots=True, order=True)
class RankName:
    """One process of a rank.

    Args:
        session: the start of the system.
        group: for example `decode#k3jx9a`.
        birth: counts the processes of this rank, from 1.
    """

    session: str
    group: str
    rank: int
    birth: int

    @classmethod
    def parse(cls, actor: str) -> "RankName | None":
        """The rank that a Ray actor is; None = it is none."""
        found = _NAME.fullmatch(actor)
        if found is None:
            return None
        return cls(found["session"], found["group"], int(found["rank"]), int(found["birth"]))

    @property
    def actor(self) -> str:
        """Name of its Ray actor."""
        return f"cloudmatrix-rank-{self.session}-{self.group}.r{self.rank}@{self.birth}"

    @property
    def replica(self) -> ReplicaId:
        """Name that gateways know it by, whichever process it is."""
        return ReplicaId(f"{self.group}.r{self.rank}")

    @property
    def pool(self) -> str:
        """The pool that its group belongs to."""
        return self.group.partition("#")[0]


def placement_group_name(session: str, group: str) -> str:
    """Name of a group's placement group in Ray."""
    return f"cloudmatrix-group-{session}-{group}"
