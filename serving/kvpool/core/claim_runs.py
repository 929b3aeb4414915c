"""Runs of claimed blocks, and the namespaces that own them, as `guards.py` keeps them."""

from collections import OrderedDict
from dataclasses import dataclass

from serving.kvpool.core.quotas import Account
from serving.values.kv_hints import ClaimKind
from serving.values.pool_view import NamespaceClaims


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    """Limits of one namespace on this server; None = only those of the server.

    Args:
        retain_bytes, pin_bytes: that its claims may guard.
        max_ttl_s: longest time from a claim to its end, however often it is renewed.
    """

    retain_bytes: int | None = None
    pin_bytes: int | None = None
    max_ttl_s: float | None = None


def limits_of(claims: NamespaceClaims) -> ClaimLimits:
    """A server's share of a namespace's limits, in which 0 is none."""
    return ClaimLimits(claims.retain_bytes or None, claims.pin_bytes or None, claims.max_ttl_s or None)


class ClaimRun:
    """Blocks of a chain with the same kind of claim and the same deadline. Guards the leading `cut` of them.

    Attributes:
        since: when its blocks were claimed. at: last claim or renewal. until: deadline.
        live: the deadline has not passed. A run that ended keeps its versions, for actions on the session.
    """

    __slots__ = ("at", "cut", "kind", "live", "owner", "since", "ttl_s", "until", "versions")

    def __init__(self, owner: "ClaimOwner", kind: ClaimKind, ttl_s: float, since: float, versions: list[int]) -> None:
        self.owner = owner
        self.kind = kind
        self.ttl_s = ttl_s
        self.since = self.at = self.until = since
        self.versions = versions
        self.cut = 0
        self.live = False


class ClaimOwner:
    """A namespace with the runs that guard blocks for it, those claimed or renewed longest ago first.

    Attributes:
        order: heap of `retains` by deadline. At most one item of each run, corrected when it surfaces.
    """

    __slots__ = ("account", "limits", "order", "pins", "retains")

    def __init__(self, account: Account, limits: ClaimLimits) -> None:
        self.account = account
        self.limits = limits
        self.retains: OrderedDict[ClaimRun, None] = OrderedDict()
        self.pins: OrderedDict[ClaimRun, None] = OrderedDict()
        self.order: list[tuple[float, int, ClaimRun]] = []
