"""A choice of an instance: what it is made from, and what comes of it."""

from typing import Literal

from msgspec import Struct

from serving.ids import NodeId, ReplicaId

Rule = Literal["load", "locality", "round_robin", "power_of_two"]


class InstanceView(Struct, frozen=True, gc=False):
    """A gateway's knowledge of one instance.

    Args:
        pool: name of its pool, for the reason text.
        queued_tokens: tokens waiting to be computed there.
        sequences: sequences waiting, being pulled or running there.
        kv_blocks_free: free or evictable blocks.
        age_s: time since the view was taken.
        reserved_tokens, reserved_sequences, reserved_blocks: sent there by this gateway since the view was taken.
        promised_blocks: that this gateway's sequences there are expected to grow by.
        tokens_per_s: recently computed there; 0 = not known.
        gateways: that send work there, this one included.
        share: of the sequences that it would get otherwise.
        waiting: of the `sequences`, those without KV blocks.
        max_sequences, max_step_tokens: bounds of what runs there at once; 0 = not known.
    """

    replica: ReplicaId
    pool: str
    node: NodeId
    queued_tokens: int
    sequences: int
    kv_blocks_free: int
    kv_blocks_total: int
    age_s: float = 0.0
    draining: bool = False
    reserved_tokens: int = 0
    reserved_sequences: int = 0
    reserved_blocks: int = 0
    promised_blocks: int = 0
    tokens_per_s: float = 0.0
    gateways: int = 1
    share: float = 1.0
    waiting: int = 0
    max_sequences: int = 0
    max_step_tokens: int = 0


class RouteDecision(Struct, frozen=True, gc=False):
    """Where to send a sequence, and why.

    Args:
        tokens: prefill only: the work that this adds there, in tokens of a short prompt.
    """

    replica: ReplicaId
    node: NodeId
    reason: str
    tokens: int = 0


class RouteTurn(Struct, frozen=True, gc=False):
    """Which question this is, and whose.

    Args:
        counter: of the questions of this kind.
        seed: the gateway's own.
    """

    counter: int
    seed: int = 0
