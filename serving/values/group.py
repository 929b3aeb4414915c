"""Messages between the ranks of a group and their shell: offers, leases, reports."""

from enum import Enum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from serving.values.expert_map import ExpertMap, GateRule, Held

# Why ranks of a group count as lost.


class LossKind(Enum):
    """Why a rank counts as lost."""

    DEAD = "dead"
    SILENT = "silent"
    UNBUILT = "unbuilt"
    BROKEN = "broken"
    STALLED = "stalled"
    LATE = "late"
    UNREACHABLE = "unreachable"


# Work of a rank in its group.


class RankRole(Enum):
    """Work of a rank in its group."""

    BOTH = "both"
    ATTENTION = "attention"
    """Sequences, attention and gates; no slots of routed experts."""
    EXPERTS = "experts"
    """Routed experts; no sequences."""

    @property
    def has_attention(self) -> bool:
        """Whether it may have sequences."""
        return self is not RankRole.EXPERTS

    @property
    def has_experts(self) -> bool:
        """Whether it has slots of routed experts."""
        return self is not RankRole.ATTENTION


# Commands of an operator to the shell of a group, and the shell's responses.


class RebalanceExperts(Struct, frozen=True, tag="rebalance"):
    """Recompute the expert placement now.

    Args:
        policy: None = the configured one.
        dry_run: only report the moves.
    """

    policy: str | None = None
    dry_run: bool = False


class MoveOneExpert(Struct, frozen=True, tag="move"):
    """Copy an expert to a rank, into a slot that is free or can be freed."""

    layer: int
    expert: int
    rank: int


class ResizeGroup(Struct, frozen=True, tag="resize"):
    """Change the number of the group's ranks, while it serves.

    Args:
        ranks: those of the group, or its attention ranks; None = as many as it has.
        expert_ranks: of a group with attention ranks and expert ranks; None = as many as it has.
    """

    ranks: int | None
    expert_ranks: int | None = None


class DrainRank(Struct, frozen=True, tag="drain"):
    """Move a rank's streams to others and stop it; a new process replaces it."""

    rank: int


class SwitchRole(Struct, frozen=True, tag="switch"):
    """Replace the last attention rank with an expert rank, or the reverse.

    Args:
        rank: the last one of its kind.
        role: of the rank that is started in its place.
    """

    rank: int
    role: RankRole


class ReadLoad(Struct, frozen=True, tag="load"):
    """Report how many rows chose each expert, by source rank, in each finished time slice.

    Args:
        after: number of the slice after which to start; None = only report the number of the last one.
    """

    after: int | None = None


PlannedOrder = RebalanceExperts | MoveOneExpert
"""Commands that move experts."""
OperatorOrder = PlannedOrder | ReadLoad
"""Commands about experts."""
SizeOrder = ResizeGroup | DrainRank | SwitchRole
"""Commands about ranks."""


class PostedOrder(Struct, frozen=True):
    """A command queued at a rank.

    Args:
        id: unique; a shell carries out each id once.
    """

    id: str
    order: OperatorOrder | SizeOrder


class OrderAnswer(Struct, frozen=True):
    """A shell's response to an operator's command.

    Args:
        accepted: False = the command had no effect.
        reason: why it was refused, or the action that is taken.
        unknown: whether it was refused because its object does not exist.
        detail: further facts, JSON-ready.
    """

    accepted: bool
    reason: str = ""
    unknown: bool = False
    detail: dict[str, Any] = field(default_factory=dict)


# Messages between the ranks of a group and their shell: offers, leases, reports.


class RankPhase(Enum):
    """Phase of a rank; the transitions are in `serving.group.core.rank_life`."""

    LOADING = "loading"
    """The rank builds its instance."""
    OFFERED = "offered"
    """Its instance is built and waits for those of its peers."""
    SERVING = "serving"
    LEAVING = "leaving"
    """The rank drains."""
    LEFT = "left"
    """The rank has drained and is empty."""
    FAILED = "failed"
    """Its instance could not be built or joined; the reason is in `RankReport.problem`."""


class RankOffer(Struct, frozen=True):
    """Facts about one rank that its peers need before the first joint step.

    Args:
        rank: its number. pid: of its process.
        window_path: UB segment with its window; empty if it computes alone.
        layout: fingerprint of model, type and block shape: the same for all ranks of a group.
        instructions: instruction set of its native step: also the same for all, since others compute other bits.
        experts: of a layer. gate: how the model's gates choose among them.
        expert_bytes: to be copied if an expert moves, of the largest layer.
        held: experts in slots of its own; empty without experts.
        slots: where peers read them, as msgpack; empty where they find them where this rank does.
        role: what it computes.
        node: where it runs; ranks of one node share memory.
        carrier: address for ranks of other nodes; ("", 0) = it only computes with those of its own.
        rows: for which its window has room; ranks of other nodes make theirs of the same size.
    """

    rank: int
    pid: int
    window_path: str
    layout: str
    instructions: str = ""
    experts: int = 0
    gate: GateRule = GateRule()
    expert_bytes: int = 0
    held: Held = ()
    slots: bytes = b""
    role: RankRole = RankRole.BOTH
    node: str = ""
    carrier: tuple[str, int] = ("", 0)
    rows: int = 0

    def is_of(self, process: "RankOffer") -> bool:
        """Whether another offer is from the same process of the same rank: the experts it holds may differ."""
        mine, theirs = (self.rank, self.node, self.pid), (process.rank, process.node, process.pid)
        return mine == theirs and self.window_path == process.window_path


class RegroupOrder(Struct, frozen=True):
    """A group's members and map from the next epoch on, which starts when all members have received this command.

    Args:
        epoch: higher than that of any rank; or the present one, if only attention ranks join or leave.
        map: of a higher version than any; ranks fill their reserve slots according to it, without computing a map. In
            the present epoch it is for ranks that join.
        offers: of the members.
    """

    epoch: int
    map: ExpertMap
    offers: tuple[RankOffer, ...]

    @property
    def version(self) -> int:
        """Version of the map."""
        return self.map.version

    def processes(self, *, with_experts: bool = False) -> tuple[int, ...]:
        """Processes of the members, by rank.

        Args:
            with_experts: leave out attention ranks.
        """
        offers = sorted(self.offers, key=lambda one: one.rank)
        return tuple(one.pid for one in offers if one.role.has_experts or not with_experts)

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks of the members, in order."""
        return tuple(sorted(offer.rank for offer in self.offers))


class RankLease(Struct, frozen=True):
    """Ownership of a rank by a shell, and the group size that the shell requests.

    Args:
        shell: Serve's unique name of the replica. pid: of its process.
        term: number of the group's shells and of its size changes so far.
        size: target number of ranks, or of attention ranks; 0 = the group shuts down. Ranks keep it for the next shell.
        former: previous number of these ranks, while they become more; otherwise 0.
        share: fraction of its usual sequences that gateways send to this rank: less than 1 for a slow one.
        expert_size, expert_former: the same as `size` and `former` for expert ranks; 0 if there are none.
    """

    shell: str
    pid: int
    term: int
    size: int = 0
    former: int = 0
    share: float = 1.0
    expert_size: int = 0
    expert_former: int = 0

    @property
    def ranks(self) -> int:
        """Target number of ranks of any role."""
        return self.size + self.expert_size

    def of(self, role: RankRole) -> tuple[int, int]:
        """Target and previous number of the ranks of a role."""
        if role is RankRole.EXPERTS:
            return self.expert_size, self.expert_former
        return self.size, self.former

    def sized(self, role: RankRole, size: int, former: int) -> "RankLease":
        """The lease with other numbers for the ranks of a role."""
        if role is RankRole.EXPERTS:
            return replace(self, expert_size=size, expert_former=former)
        return replace(self, size=size, former=former)


class RankReport(Struct, frozen=True):
    """A rank's response to a shell that requests its lease.

    Args:
        lease: the current lease: the requesting shell's, if granted.
        offer: from `RankPhase.OFFERED` on.
        members: processes that it computes with, by rank, its own included, from the last command it received.
        epoch: of that command. raised: epoch that it has started. version: of the latest map that it received.
        using: version of the map in use.
        stalled_s: time that it has had work without a step, if that is too long; otherwise 0.
        problem: why it failed.
        late_peer: rank for which it has waited longer than a step may take.
        unreachable: members of other nodes whose connections have ended: they can write nothing here any more.
        orders: operator commands that wait for a response.
        experts: those of `members` that have experts.
    """

    lease: RankLease
    phase: RankPhase
    pid: int
    node: str
    offer: RankOffer | None = None
    members: tuple[int, ...] = ()
    epoch: int = 0
    raised: int = 0
    version: int = 0
    using: int = 0
    stalled_s: float = 0.0
    problem: str = ""
    late_peer: int | None = None
    orders: tuple[PostedOrder, ...] = ()
    experts: tuple[int, ...] = ()
    unreachable: tuple[int, ...] = ()
