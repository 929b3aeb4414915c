"""Claims and hints to all memory servers: each acts on the blocks that it has."""

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from serving.kvpool.core.messages import Message
from serving.kvpool.core.operation import (
    PoolAnswer,
    PoolAsk,
    PoolClose,
    PoolEffect,
    PoolEvent,
    PoolFailure,
)
from serving.kvpool.core.prefix_find import servers_to_ask
from serving.kvpool.core.ring import HashRing
from serving.values.kv_hints import BlockClaim, ClaimedBlocks


def claim_of(claim: BlockClaim, ring: HashRing, servers: Collection[str]) -> dict[str, BlockClaim]:
    """The part of a claim for each server: the blocks that it may have, perhaps none, in their order."""
    runs: dict[str, list[ClaimedBlocks]] = {name: [] for name in servers}
    for run in claim.runs:
        for name, indices in servers_to_ask(ring, servers, run.hashes).items():
            if name in runs:
                runs[name].append(ClaimedBlocks(run.kind, run.ttl_s, tuple([run.hashes[index] for index in indices])))
    return {name: replace(claim, runs=tuple(own)) for name, own in runs.items()}


class Broadcast:
    """One request to each of several servers. `result` has the responses once all have responded or failed.

    Args:
        messages: by server.
        until: when responses are due.
    """

    def __init__(self, messages: Mapping[str, Message], until: float) -> None:
        self.result: dict[str, Message] | None = None
        self._messages = messages
        self._until = until
        self._answers: dict[str, Message] = {}
        self._waiting = set(messages)

    def start(self, now: float) -> Sequence[PoolEffect]:
        """Ask all of them."""
        del now
        self._conclude()
        return [PoolAsk(name, message, self._until) for name, message in self._messages.items()]

    def on(self, event: PoolEvent, now: float) -> Sequence[PoolEffect]:
        """Takes an answer or a failure: a server that fails has forgotten its claims, or will when they end."""
        del now
        if not isinstance(event, PoolAnswer | PoolFailure):
            return []
        self._waiting.discard(event.server)
        if isinstance(event, PoolAnswer):
            self._answers[event.server] = event.message
        self._conclude()
        return [PoolClose(event.server)] if isinstance(event, PoolFailure) else []

    def _conclude(self) -> None:
        if not self._waiting:
            self.result = self._answers
