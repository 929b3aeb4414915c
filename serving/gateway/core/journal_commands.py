"""Commands of a sequence's journal to its gateway, as values."""

from enum import Enum

from msgspec import Struct

from serving.ids import ReplicaId
from serving.values.jobs import Fail
from serving.values.news import FailKind, Tokens
from serving.values.orders import Send
from serving.values.sequence import FinishReason, HandoffTicket

LATER_S = 0.5
"""Delay before full instances are retried: each retry sends a command with the whole prompt."""

FINAL = {
    FinishReason.DEADLINE: (FailKind.DEADLINE, "the deadline passed at the instance"),
    FinishReason.GRAMMAR: (FailKind.INVALID, "no token can follow that the request's grammar or its token lists allow"),
    FinishReason.GRAMMAR_LIMIT: (FailKind.INVALID, "the request's grammar is too large for this server"),
}
"""Finish reasons that would be the same at any instance, and how a sequence with one fails."""


class AtSource(Enum):
    """When the instance that holds a handoff may decode it itself (`decode_at_source`)."""

    AFTER_GRACE = "after grace"
    """No decode instance has been available for a while: a prefill instance is better than none."""
    IF_ALONE = "if alone"
    """A stream leaves a draining instance. If there is no other, it continues at its instance immediately."""
    NOW = "now"
    """Immediately, after another instance refused a sequence that leaves a draining instance."""


class NeedPrefill(Struct, frozen=True, gc=False):
    """Route the sequence to an instance that computes it, then call `prefill_routed`.

    Args:
        tokens: known tokens that must be in the KV cache.
        exclude: instances that failed this sequence before.
        alone: an instance was lost with it, and it may be the cause: avoid instances with another such sequence;
            otherwise the next loss would not show which of them caused it.
        later: all instances refused it as full: wait for `LATER_S`.
    """

    tokens: int
    exclude: tuple[ReplicaId, ...] = ()
    alone: bool = False
    later: bool = False


class NeedDecode(Struct, frozen=True, gc=False):
    """Route the handoff to a decode instance, then call `decode_routed`; or leave it at its source, `decode_at_source`.

    Args:
        at_source: when to leave it there.
        alone, later: as in `NeedPrefill`.
    """

    ticket: HandoffTicket
    exclude: tuple[ReplicaId, ...] = ()
    at_source: AtSource = AtSource.AFTER_GRACE
    alone: bool = False
    later: bool = False


class NeedTrial(Struct, frozen=True, gc=False):
    """Route a sequence that lost two instances to an idle one, reserved for it until it is decoded; then call
    `serve_whole`. Wait while further instances may still die of the same cause.

    Args:
        tokens, exclude: as in `NeedPrefill`.
        lost: a trial instance lost before; first call `judged`, as soon as it is known whether others died with it.
    """

    tokens: int
    exclude: tuple[ReplicaId, ...] = ()
    lost: ReplicaId | None = None


Need = NeedPrefill | NeedDecode | NeedTrial
Command = Need | Send | Tokens | Fail
"""`Tokens` are new output for the client: each token exactly once, in order; data sent once is in the first."""
