"""Values of a routing decision: its input and its result."""

from typing import Literal

from msgspec import Struct

from serving.ids import NodeId, ReplicaId

Rule = Literal["load", "locality", "round_robin", "power_of_two"]


class InstanceView(Struct, frozen=True, gc=False):
    """A gateway's knowledge of one instance.

    Args:
        pool: name of its pool, for the reason text.
        queued_tokens: tokens queued for computation.
        sequences: sequences waiting, being pulled or running.
        kv_blocks_free: free or evictable blocks.
        age_s: time since the view was taken.
        reserved_tokens, reserved_sequences, reserved_blocks: sent by this gateway since the view was taken.
        promised_blocks: expected growth of this gateway's sequences.
        tokens_per_s: recent speed; 0 = unknown.
        gateways: number of gateways that send work to it, including this one.
        share: fraction of its usual number of sequences that it requests.
        waiting: number of its `sequences` without KV blocks.
        max_sequences, max_step_tokens: limits of its concurrent work; 0 = unknown.
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
    """The chosen instance, and the reason.

    Args:
        tokens: prefill only: the added work, in tokens of a short prompt.
    """

    replica: ReplicaId
    node: NodeId
    reason: str
    tokens: int = 0


class RouteTurn(Struct, frozen=True, gc=False):
    """Number of a decision, for alternation among equal instances.

    Args:
        counter: of the gateway's decisions of this kind.
        seed: of the gateway.
    """

    counter: int
    seed: int = 0


# Cost of a prompt to the instance that computes it, in tokens of a short prompt.
#
# Projections and experts cost the same for every token; a token's attention cost is proportional to its context.
# So `u` uncached tokens after `h` cached tokens cost, in units of one token without context,
#
#     u + u * (h + u / 2) / attention_tokens
#
# Source: xDeepServe (arXiv 2508.02520) section 4.3 for the form; the scale follows from the model's shape.


class PrefillCost(Struct, frozen=True, gc=False):
    """Costs of one model.

    Args:
        attention_tokens: context length at which a token's attention costs as much as the rest of its computation;
            0 = attention is free. 14,800 for DeepSeek-R1.
    """

    attention_tokens: float = 0.0

    def tokens(self, uncached: int, cached: int = 0) -> int:
        """The cost of a prompt.

        Args:
            uncached: tokens to be computed; cached: tokens before them whose KV exists.
        Returns: short-prompt tokens of the same cost.
        """
        if self.attention_tokens <= 0:
            return uncached
        return uncached + round(uncached * (cached + uncached / 2) / self.attention_tokens)
