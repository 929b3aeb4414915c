"""Claims and hints to the memory servers of a pool in virtual time; each acts on the blocks that it has."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from serving.kvpool.core.broadcast import claim_of
from serving.values.kv_hints import BlockClaim, HintAction, HintOutcome, SessionFacts, combined, merged_sessions
from serving.virtual.memory_members import Members
from serving.virtual.memory_server import VirtualServer


class ClaimedServers(ABC):
    """The part of a pool that takes claims and hints."""

    _members: Members

    @abstractmethod
    def tick(self, now: float) -> None:
        """Carry out all timed events up to now."""

    def claim(self, namespace: str, claim: BlockClaim, now: float) -> HintOutcome:
        """Claim blocks for a session, on each server that has some. Servers that do not respond miss it."""
        self.tick(now)
        parts = claim_of(claim, self._members.ring, self._members.up)
        return self._everywhere(lambda name, server: server.claim(namespace, parts[name], now), now)

    def hint(self, namespace: str, action: HintAction, now: float) -> HintOutcome:
        """Carry out an action on the blocks of a session, or on named ones, on each server that responds."""
        self.tick(now)
        return self._everywhere(lambda _name, server: server.manager.claims.hint(namespace, action, now), now)

    def sessions(self, namespace: str, limit: int, now: float) -> list[SessionFacts]:
        """Sessions of a namespace, about the latest `limit` ones."""
        self.tick(now)
        listings = [one.manager.claims.sessions(namespace, limit, now) for one in self._members.up.values()]
        return merged_sessions(listings)[:limit]

    def _everywhere(self, act: Callable[[str, VirtualServer], HintOutcome], now: float) -> HintOutcome:
        outcomes: list[HintOutcome] = []
        for name, server in list(self._members.up.items()):
            outcomes.append(act(name, server))
            self._members.work(server, now)
        return combined(outcomes)
