"""Feeds the routing policy with what a live gateway would know: reports that are a little old, and its own doings.

A view is renewed at most every `status_period_s`; in between, what this gateway sent there counts as a reservation, as
the live gateway does.
"""

from zlib import crc32

from msgspec.structs import replace

from serving.config.serve import ServeConfig
from serving.errors import UnavailableError
from serving.ids import BlockHash, NodeId, ReplicaId
from serving.policy.gateway_router import GatewayRouter
from serving.policy.output_reserve import OutputReserve
from serving.policy.router import InstanceView, RouteDecision
from serving.sim.core.events import EventQueue
from serving.sim.core.ports import Instance

MAX_AGE_S = 1.0
HISTORY_TOKENS = 1 << 20
"""What a gateway remembers of prompts, as the live one does."""


def gateway_policy(config: ServeConfig, number: int, attention_tokens: float) -> GatewayRouter:
    """The router of one of a supernode's gateways.

    Args:
        attention_tokens: see `policy.prefill_cost`.
    """
    block_tokens = config.engine.block_tokens
    hashed = config.gateway.routing == "locality" or (config.kvcache.replicas > 0 and config.engine.prefix_reuse)
    history = HISTORY_TOKENS // block_tokens if hashed else 0
    return GatewayRouter(
        MAX_AGE_S, block_tokens, history, config.gateway.routing, crc32(f"g{number}".encode()), attention_tokens
    )


class _Known:
    """What one gateway knows of one instance."""

    __slots__ = ("instance", "read_at", "view")

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.read_at = -1.0
        self.view = InstanceView(instance.name, instance.pool, NodeId(""), 0, 0, 0, instance.kv_blocks)


class VirtualRouter:
    """Chooses instances for one gateway.

    Args:
        policy: decides; was asked nothing yet.
        period_s: how often views are renewed. gateways: how many there are.
    """

    def __init__(
        self, queue: EventQueue, period_s: float, block_tokens: int, policy: GatewayRouter, gateways: int = 1
    ) -> None:
        self._queue = queue
        self._period_s = period_s
        self._block_tokens = block_tokens
        self._policy = policy
        self._gateways = gateways
        self._reserves = OutputReserve(block_tokens)
        self._known: dict[ReplicaId, _Known] = {}
        self._pools: dict[str, list[_Known]] = {"prefill": [], "decode": []}

    def learn(self, instance: Instance) -> None:
        """An instance has come up."""
        known = _Known(instance)
        self._known[instance.name] = known
        self._pools[instance.pool].append(known)

    def forget(self, name: ReplicaId) -> None:
        """An instance is gone."""
        self._policy.forget(name)
        known = self._known.pop(name, None)
        if known is not None:
            self._pools[known.instance.pool].remove(known)

    def open(self) -> bool:
        """Whether some instance would take a prompt."""
        for pool in self._pools.values():
            for known in pool:
                if not known.instance.draining:
                    return True
        return False

    def grew(self, key: str, tokens: int) -> None:
        """A sequence has so many new tokens."""
        self._reserves.grew(key, tokens)

    def ended(self, key: str) -> None:
        """A sequence needs no room any more."""
        self._reserves.drop(key)

    def prefill(
        self, tokens: int, known_tokens: int, hashes: tuple[BlockHash, ...], exclude: tuple[ReplicaId, ...]
    ) -> RouteDecision:
        """Where a prompt is computed; on a decode instance if no prefill instance is left.

        Raises: UnavailableError when there is no instance.
        """
        views = [view for view in self._views("prefill") if not view.draining] or self._views("decode")
        decision = self._policy.prefill(views, tokens, exclude, hashes)
        self._reserve(decision.replica, decision.tokens, -(-known_tokens // self._block_tokens) + 1)
        return decision

    def decode(self, key: str, known_tokens: int, left: int, exclude: tuple[ReplicaId, ...]) -> RouteDecision:
        """Where a handoff is adopted.

        Args:
            key: of the sequence. left: tokens that it may still generate.
        Raises: UnavailableError when there is no decode instance.
        """
        blocks = -(-known_tokens // self._block_tokens) + 1
        needed = blocks + self._reserves.expected_blocks(left)
        decision = self._policy.decode(self._views("decode"), needed, exclude)
        self._reserve(decision.replica, 0, blocks)
        self._reserves.book(key, decision.replica, left)
        return decision

    def _views(self, pool: str) -> list[InstanceView]:
        now, oldest = self._queue.now, self._queue.now - self._period_s
        views = []
        for known in self._pools[pool]:
            instance = known.instance
            if known.read_at <= oldest or known.view.draining != instance.draining or known.read_at < 0.0:
                tokens, inside, free = instance.status()
                known.read_at = now
                known.view = InstanceView(
                    instance.name, pool, NodeId(""), tokens, inside, free, instance.kv_blocks, 0.0, instance.draining,
                    tokens_per_s=instance.tokens_per_s(), gateways=self._gateways,
                )  # fmt: skip
            view = known.view
            if pool == "decode" and view.promised_blocks != (promised := self._reserves.blocks(instance.name)):
                view = known.view = replace(view, promised_blocks=promised)
            views.append(view)
        return views

    def _reserve(self, name: ReplicaId, tokens: int, blocks: int) -> None:
        known = self._known.get(name)
        if known is None:
            raise UnavailableError(f"{name} is gone", retry_after_s=1.0)
        view = known.view
        known.view = replace(
            view,
            reserved_tokens=view.reserved_tokens + tokens,
            reserved_sequences=view.reserved_sequences + 1,
            reserved_blocks=view.reserved_blocks + blocks,
        )
