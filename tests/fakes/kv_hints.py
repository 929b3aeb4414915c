"""Memory servers for KV hints: sessions in a dict, every action recorded."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.values.kv_hints import HintAction, HintOutcome, HintStatus, HintVerb, SessionFacts, merged_sessions


@dataclass
class FakeKvHints:
    """Holds blocks of sessions: (namespace, session, branch) to their number."""

    held: dict[tuple[str, str, str], int] = field(default_factory=dict)
    sent: list[tuple[str, HintAction]] = field(default_factory=list)
    complete: bool = True

    async def send(self, namespace: str, actions: Sequence[HintAction]) -> list[HintOutcome]:
        """Accept each action on a session that is there; a release removes it."""
        return [self._one(namespace, action) for action in actions]

    async def sessions(self, namespace: str, limit: int) -> tuple[list[SessionFacts], bool]:
        """All that is held."""
        found = [
            SessionFacts(session, (branch,), blocks << 20, 0, 12.5, "retain accepted")
            for (owner, session, branch), blocks in self.held.items()
            if owner == namespace
        ]
        return merged_sessions([found])[:limit], self.complete

    def _one(self, namespace: str, action: HintAction) -> HintOutcome:
        self.sent.append((namespace, action))
        branches = [
            name for name in self.held if name[:2] == (namespace, action.session) and action.branch in (None, name[2])
        ]
        if not branches:
            return HintOutcome(HintStatus.MISSING)
        blocks = sum(self.held[name] for name in branches)
        if action.verb is HintVerb.RELEASE:
            for name in branches:
                del self.held[name]
        return HintOutcome(HintStatus.ACCEPTED, blocks, blocks)
