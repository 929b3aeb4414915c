"""KV hints: what clients and gateways tell memory servers about blocks that will, or will not, be used again.

A *claim* protects the blocks of a session until a deadline; an *action* changes claims, or moves blocks between tiers.
Both only change order, place and time: no output depends on them.
"""

from collections.abc import Container, Iterable
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

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


class ClaimedBlocks(Struct, frozen=True, gc=False, array_like=True):
    """Claim of these blocks of a chain, in its order.

    Args:
        left_s: until its deadline, if it was made before; None = its whole time.
        age_s: since it was made.
    """

    kind: ClaimKind
    ttl_s: float
    hashes: tuple[BlockHash, ...]
    left_s: float | None = None
    age_s: float = 0.0


class BlockClaim(Struct, frozen=True, gc=False, array_like=True):
    """A `SequenceClaim` with the blocks that it covers, from an instance to memory servers.

    Args:
        leaf: identifies the sequence. Claims of one leaf add up; another leaf of the branch supersedes it: blocks that
            only the older leaf claims leave first from then on.
        runs: no block twice. Empty = nothing of the leaf is on this server.
        moved: the blocks came from another server. Then nothing is superseded or renewed, and a branch that has another
            leaf by now stays as it is.
    """

    session: str
    branch: str
    leaf: str
    runs: tuple[ClaimedBlocks, ...] = ()
    moved: bool = False


def only(claim: BlockClaim, wanted: Container[BlockHash]) -> BlockClaim:
    """The claim of some of its blocks."""
    runs = [replace(run, hashes=tuple([hash for hash in run.hashes if hash in wanted])) for run in claim.runs]
    return replace(claim, runs=tuple([run for run in runs if run.hashes]))


class HintVerb(Enum):
    """Kinds of actions."""

    RETAIN = "retain"
    PIN = "pin"
    TOUCH = "touch"
    """Renew the claims that the session has, each for its own time."""
    RELEASE = "release"
    """End the session's claims; blocks that nobody else claims leave first."""
    DEMOTE = "demote"
    PREFETCH = "prefetch"


class HintAction(Struct, frozen=True, gc=False, array_like=True):
    """One action on a session's blocks, or on named ones.

    Args:
        branch: None = all branches of the session.
        hashes: the blocks; empty = those that the session claims. Without a session, `RETAIN` and `PIN` claim them for
            the namespace as a whole.
        ttl_s: of `RETAIN` and `PIN`; bounded by the server.
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


class HintOutcome(Struct, frozen=True, gc=False, array_like=True):
    """Result of an action on one server: `blocks` of `wanted` blocks. `reason` is set if it was rejected or clipped."""

    status: HintStatus
    blocks: int = 0
    wanted: int = 0
    reason: str = ""


_ORDER = (HintStatus.CLIPPED, HintStatus.DEFERRED, HintStatus.REJECTED, HintStatus.ACCEPTED)


def combined(outcomes: Iterable[HintOutcome]) -> HintOutcome:
    """Result of one action over all servers; `MISSING` only if it is missing everywhere."""
    found = [one for one in outcomes if one.status is not HintStatus.MISSING]
    status = next((status for status in _ORDER if any(one.status is status for one in found)), HintStatus.MISSING)
    reason = next((one.reason for one in found if one.status is status), "")
    return HintOutcome(status, sum(one.blocks for one in found), sum(one.wanted for one in found), reason)


class SessionFacts(Struct, frozen=True, gc=False, array_like=True):
    """One session of a namespace, on one server or over all.

    Args:
        dram_bytes, ssd_bytes: of its blocks, where readers would find them.
        left_s: until its last deadline; 0 = its claims have ended.
        outcome: of the latest claim or action, as text.
    """

    session: str
    branches: tuple[str, ...]
    dram_bytes: int
    ssd_bytes: int
    left_s: float
    outcome: str


def merged_sessions(listings: Iterable[Iterable[SessionFacts]]) -> list[SessionFacts]:
    """The sessions of several servers, each once: bytes are added up, the latest deadline counts."""
    merged: dict[str, SessionFacts] = {}
    for one in (facts for listing in listings for facts in listing):
        known = merged.get(one.session)
        if known is not None:
            one = SessionFacts(
                one.session,
                tuple(dict.fromkeys((*known.branches, *one.branches))),
                known.dram_bytes + one.dram_bytes,
                known.ssd_bytes + one.ssd_bytes,
                max(known.left_s, one.left_s),
                one.outcome or known.outcome,
            )
        merged[one.session] = one
    return list(merged.values())
