"""The live `KvHints`: every action goes to all memory servers, each of which acts on its own blocks."""

from collections.abc import Sequence

from serving.config.serve import ServeConfig
from serving.gateway.api.hints.pauses import PauseDesk
from serving.gateway.core.from_config import pause_times
from serving.gateway.live.memory_links import MemoryLinks
from serving.kvpool.core.messages import AskSessions, Hint, Hinted, SessionsListed
from serving.telemetry.metrics import GatewayMetrics
from serving.values.kv_hints import HintAction, HintOutcome, HintStatus, SessionFacts, combined, merged_sessions

_NOBODY = HintOutcome(HintStatus.REJECTED, reason="no memory server answered")


def pause_desk(config: ServeConfig, servers: "LiveKvHints | None", metrics: GatewayMetrics) -> PauseDesk | None:
    """A gateway's tool pauses, kept while its configuration changes; None if it does not learn them."""
    times = None if servers is None else pause_times(config)
    return None if times is None or servers is None else PauseDesk(servers, times, metrics)


class LiveKvHints:
    """Asks over a gateway's links. A server that does not answer in time is left out."""

    def __init__(self, links: MemoryLinks) -> None:
        self._links = links

    async def send(self, namespace: str, actions: Sequence[HintAction]) -> Sequence[HintOutcome]:
        """See `KvHints.send`."""
        answers = await self._links.ask_all(Hint(namespace, tuple(actions)), Hinted)
        rows = [one.outcomes for one in answers.values() if len(one.outcomes) == len(actions)]
        if not rows:
            return [_NOBODY] * len(actions)
        return [combined(row[index] for row in rows) for index in range(len(actions))]

    async def sessions(self, namespace: str, limit: int) -> tuple[Sequence[SessionFacts], bool]:
        """See `KvHints.sessions`."""
        answers = await self._links.ask_all(AskSessions(namespace, limit), SessionsListed)
        found = merged_sessions(one.sessions for one in answers.values())
        return found[:limit], len(answers) == len(self._links.servers)
