"""KV hints: what clients and gateways tell memory servers about blocks that will, or will not, be used again.

A *claim* protects the blocks of a session until a deadline; an *action* changes claims, or moves blocks between tiers.
Both only change order, place and time: no output depends on them.
"""

from enum import Enum

from msgspec import Struct

from serving.ids import BlockHash


class ClaimKind(Enum):
    """Strength of a claim."""

    RETAIN = "retain"
    """Leaves memory after unclaimed blocks."""
    PIN = "pin"
    """Stays in memory until the deadline, within the budget of its namespace."""


class ClaimSpan(Struct, frozen=True, gc=False):
    """Claim of the leading `tokens` tokens of a prompt and its output; 0 = all of them. `ttl_s` counts from now."""

    kind: ClaimKind
    ttl_s: float
    tokens: int = 0


class SequenceClaim(Struct, frozen=True, gc=False):
    """The claims that come with a sequence. A newer leaf of the same branch supersedes the older one.

    Args:
        session: identifies the conversation within its namespace.
        branch: of the session (a subagent); empty = its trunk.
        spans: the longest-lived first.
    """

    session: str
    branch: str = ""
    spans: tuple[ClaimSpan, ...] = ()


class HintVerb(Enum):
    """What an action does."""

    RETAIN = "retain"
    PIN = "pin"
    TOUCH = "touch"
    """Renew the claims that the session has, each for its own time."""
    RELEASE = "release"
    """End the session's claims; blocks that nobody else claims leave first."""
    DEMOTE = "demote"
    PREFETCH = "prefetch"


class HintAction(Struct, frozen=True, gc=False):
    """One action on a session's blocks, or on named ones.

    Args:
        branch: None = all branches of the session.
        hashes: the blocks; empty = those that the session claims.
    """

    verb: HintVerb
    session: str = ""
    branch: str | None = None
    hashes: tuple[BlockHash, ...] = ()
    ttl_s: float = 0.0


class HintStatus(Enum):
    """Result of an action."""

    ACCEPTED = "accepted"
    CLIPPED = "clipped"
    """A part only: a budget is used up."""
    DEFERRED = "deferred"
    """Will be done when there is room, or the disk is idle."""
    REJECTED = "rejected"
    MISSING = "missing"
    """No such session, or none of its blocks are here."""


class HintOutcome(Struct, frozen=True, gc=False):
    """Result of an action on one server: `blocks` of `wanted` blocks. `reason` is set if it was rejected or clipped."""

    status: HintStatus
    blocks: int = 0
    wanted: int = 0
    reason: str = ""
