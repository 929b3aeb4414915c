"""A rank's own decisions: whose it is, when it ends for want of a shell, and what may follow what in its life.

A rank belongs to the shell with the highest term that it has heard of. A shell that takes a group over asks with the
term after the one that it has seen: of two that try at once the first gets it, the other is refused, and so is a former
shell that only seemed to be dead. A shell that changes the size of its group raises the term, too, so that the next one
knows which size is the newest.
"""

from collections.abc import Sequence

from serving.errors import GroupError, LedgerError
from serving.values.group import RankLease, RankOffer, RankPhase
from serving.values.health import Silence

LEASE_S = 30.0
"""A rank without a shell ends itself after this time: long enough for Serve to start another one, which takes a few
seconds, even on a machine that is busy."""

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
        founder: the shell that made the rank.
    """

    def __init__(self, founder: RankLease, now: float, lease_s: float = LEASE_S) -> None:
        self.lease = founder
        self.phase = RankPhase.LOADING
        self.problem = ""
        self._heard_at = now
        self._silence = Silence(lease_s, now)

    def hold(self, asker: RankLease, now: float) -> bool:
        """A shell renews its lease, or takes the rank over. Returns: whether the rank is its own now."""
        if (asker.term, asker.shell) != (self.lease.term, self.lease.shell) and asker.term <= self.lease.term:
            return False
        self.lease, self._heard_at = asker, now
        return True

    def lapsed(self, now: float) -> bool:
        """Whether no shell has renewed the lease for too long. Call it every second or so.

        A rank that was frozen itself gives its shell the whole time again.
        """
        self._silence.look(now)
        return self._silence.too_long(self._heard_at, now)

    def enter(self, phase: RankPhase, problem: str = "") -> None:
        """Go on to another phase.

        Raises: LedgerError if that cannot follow.
        """
        if phase not in _NEXT[self.phase]:
            raise LedgerError(f"a rank that is {self.phase.value} cannot be {phase.value} next")
        self.phase, self.problem = phase, problem


def outranks(holder: RankLease, own: RankLease) -> bool:
    """Whether a rank belongs to another shell. A holder of a lower term is that of an earlier response."""
    return holder.term > own.term or (holder.term == own.term and holder.shell != own.shell)


def counted_size(before: int, wanted: int, members: int) -> int:
    """Ranks that make a group whole, as it is to be shown: one that grows is whole until all newcomers have joined, one
    that shrinks from the order on, and a loss or a drain changes nothing.

    Args:
        before: the last answer; at first, ranks of the group when the rank was made.
        wanted: ranks that it is to have; 0 = it ends.
        members: ranks that compute together.
    """
    if not wanted:
        return before
    return wanted if members >= wanted else min(before, wanted)


def check_offers(own: RankOffer, most: int, offers: Sequence[RankOffer]) -> None:
    """Checks that these offers make a group, maybe one that lacks some ranks, that this rank can be part of.

    Args:
        most: ranks that it may have.

    Raises: GroupError if one is twice there, is of no rank, is not what this rank offered, or has another layout, or if
        all together lack experts or attention.
    """
    numbers = sorted(offer.rank for offer in offers)
    if len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(most)):
        raise GroupError(f"a group of at most {most} ranks cannot be formed of {numbers}")
    for part, there in (("experts", [one.role.has_experts for one in offers]),
                        ("attention", [one.role.has_attention for one in offers])):  # fmt: skip
        if not any(there):
            raise GroupError(f"ranks {numbers} have no {part}: a group needs a rank with them")
    if not any(own.is_of(offer) for offer in offers):
        raise GroupError(f"rank {own.rank} of the group is another process by now")
    for offer in offers:
        if offer.layout != own.layout:
            raise GroupError(f"ranks {own.rank} and {offer.rank} have different models or layouts of KV")
        if offer.instructions != own.instructions:
            raise GroupError(
                f"rank {own.rank} computes with {own.instructions}, rank {offer.rank} with {offer.instructions}: their"
                f" results would differ; put the group on processors of one kind"
            )
