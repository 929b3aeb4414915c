"""Names of ranks and groups in Ray, where a new shell finds what a former one has made.

cloudmatrix-group-<session>-decode#k3jx9a             placement group
cloudmatrix-rank-<session>-decode#k3jx9a.r0@2         actor: rank 0, the second process of it
"""

import re
from dataclasses import dataclass

from serving.ids import ReplicaId

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
