"""Operations on the pools' sizes, each with the type of its response.

    cloudmatrix scale ─┐
    page /pools ───────┼─► HTTP ─► one of these ─► the scaling board, which carries it out
    REST …/scale ──────┘

The caller creates an operation, all processes in between forward it unread, and `ScalingBoard.answer` carries it out.
Fields have the names, types and limits of the HTTP API, where `pool` is in the path.
"""

from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Meta, Struct

MOST_REPLICAS = 384
"""NPUs of a supernode: the configuration's limit for any pool."""
LONGEST_HOLD_S = 30 * 86_400.0
MOST_DECISIONS = 200

Replicas = Annotated[int, Meta(ge=0, le=MOST_REPLICAS)]
HoldSeconds = Annotated[float, Meta(ge=0, le=LONGEST_HOLD_S)]
Caller = Literal["cli", "page", "rest"]
"""Caller, for the ledger."""


class ScaleAnswer(Struct, frozen=True):
    """The outcome of a change.

    Args:
        before, target: replicas requested before and after the change.
        fits: the most replicas that would fit now.
        hold_left_s: how long the policy will leave the pool unchanged [s]; 0 = it may act immediately.
        message: the same as text, one line.
    """

    pool: str
    before: int
    target: int
    fits: int
    hold_left_s: float
    message: str


class ScaleRefusal(Struct, frozen=True):
    """Reason of a refused change. The board returns it instead of raising, since errors lose their fields in transit.

    Args:
        kind: `unknown_pool`, `unknown_group`, `invalid`, `no_room`, `not_now` or `unavailable`.
        fits: the most replicas that would fit; None if that is irrelevant.
    """

    kind: str
    message: str
    fits: int | None = None


class GroupAnswer(Struct, frozen=True):
    """Outcome of a command to a group of ranks.

    Args:
        message: text, one line.
    """

    group: str
    message: str


Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True)


class PoolOperation(Struct, Generic[Answer_co], frozen=True, forbid_unknown_fields=True):
    """One operation of the scaling board, with the type of its response, unless it is refused."""


class ReadPools(PoolOperation[dict[str, Any]], frozen=True):
    """Pools, replicas, NPUs, SLOs, holds and the last decisions, ready for JSON."""


class ReadExperts(PoolOperation[dict[str, Any]], frozen=True):
    """Groups of ranks in the form of a gateway's `GET /experts`, JSON-ready, for the experts' page."""


class ReadDecisions(PoolOperation[list[dict[str, Any]]], frozen=True):
    """Entries of the ledger, latest first: of one pool, with a larger id than `after`, at most `limit`.

    Ids count up from 1.
    """

    pool: Annotated[str, Meta(max_length=64)] | None = None
    after: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=MOST_DECISIONS)] = MOST_DECISIONS


class ReadEvents(PoolOperation[list[dict[str, Any]]], frozen=True):
    """Events of instances and hosts, latest first: of one pool, with a larger id than `after`, at most `limit`.

    Ids count up and do not repeat.
    """

    pool: Annotated[str, Meta(max_length=64)] | None = None
    after: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=MOST_DECISIONS)] = MOST_DECISIONS


class ReadHistory(PoolOperation[list[dict[str, Any]]], frozen=True):
    """Samples of the last hour, oldest first.

    Args:
        after: only later samples [s since 1970].
    """

    after: Annotated[float, Meta(ge=0)] = 0.0


class ScalePool(PoolOperation[ScaleAnswer], frozen=True):
    """Set a pool's number of replicas, and prevent the policy from changing it for `hold_s` [s].

    Refused as `unknown_pool`, `invalid` (a number out of bounds), `no_room` (with `fits`) or `unavailable`.

    Args:
        hold_s: 0 = the policy may act immediately; None = `[autoscaler] manual_hold_s`.
    """

    pool: str
    replicas: Replicas
    hold_s: HoldSeconds | None = None
    by: Caller = "rest"


class HoldPool(PoolOperation[ScaleAnswer], frozen=True):
    """Prevent the policy from changing a pool. Refused as `unknown_pool`, `invalid` or `unavailable`.

    Args:
        hold_s: for how long [s]; None = `[autoscaler] manual_hold_s`, 0 = release it.
    """

    pool: str
    hold_s: HoldSeconds | None = None
    by: Caller = "rest"


class ReleasePool(PoolOperation[ScaleAnswer], frozen=True):
    """Allow the policy to change a pool again; no effect if it already may. Refused like `HoldPool`."""

    pool: str
    by: Caller = "rest"


class RebalanceGroup(PoolOperation[GroupAnswer], frozen=True):
    """Make a group of ranks recompute its expert placement now.

    Refused as `unknown_group`, `not_now` (with the group's reason) or `unavailable`.
    """

    group: Annotated[str, Meta(max_length=128)]
    by: Caller = "rest"


class DrainGroupRank(PoolOperation[GroupAnswer], frozen=True):
    """Replace a rank of a group without a loss: its streams move to other ranks, then another process replaces it.

    Refused like `RebalanceGroup`.
    """

    group: Annotated[str, Meta(max_length=128)]
    rank: Annotated[int, Meta(ge=0, lt=MOST_REPLICAS)]
    by: Caller = "rest"


class ResizeRankGroup(PoolOperation[GroupAnswer], frozen=True):
    """Change a group's number of ranks while it serves. Refused like `RebalanceGroup`, or as `no_room`."""

    group: Annotated[str, Meta(max_length=128)]
    ranks: Annotated[int, Meta(ge=1, le=MOST_REPLICAS)]
    by: Caller = "rest"
