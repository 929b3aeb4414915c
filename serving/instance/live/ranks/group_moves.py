"""A shell's way to its group's experts: tells ranks what `GroupExperts` decides, and `GroupExperts` what comes of it.

Decides nothing, and is never on the path of a token or of a step.
"""

import asyncio
import logging
from collections.abc import Sequence

from serving.experts.core.group_experts import GroupExperts
from serving.instance.core.group_course import Regroup
from serving.instance.live.ranks.group_port import GroupPort, MoveExperts, RankDeadError, RankSilentError
from serving.instance.live.ranks.known_rank import KnownRank
from serving.values.expert_map import ExpertMap
from serving.values.expert_moves import MovesEnded, MovesStopped, RankEvent
from serving.values.group import RankLease

logger = logging.getLogger(__name__)

STOP_DEADLINE_S = 3.0
"""A rank ends a copy after its next piece, and then answers."""


class GroupMoves:
    """Experts of one group. Belongs to the event loop of its shell."""

    def __init__(self, port: GroupPort) -> None:
        self._port = port
        self.experts = GroupExperts()

    async def regroup(
        self, due: Regroup, members: Sequence[KnownRank], ranks: int, lease: RankLease
    ) -> ExpertMap | None:
        """The map of a regrouping.

        Args:
            members: those that `due` names.
            ranks: of the group, some of which may be missing.
        Returns: None if a member does not say what it holds; a later round asks again.
        """
        unknown = [one for one in members if one.serves and not self._is_known(one)]
        await asyncio.gather(*(self._stop(one, lease) for one in unknown))
        if not all(self._is_known(one) for one in unknown):
            return None
        return self.experts.regroup(due.members, ranks, due.version)

    def _is_known(self, one: KnownRank) -> bool:
        return one.report is not None and self.experts.is_known(one.name.rank, one.report.pid)

    async def _stop(self, one: KnownRank, lease: RankLease) -> None:
        """Tell a rank that moves have ended, whoever's they were."""
        assert one.report is not None
        pid = one.report.pid
        call = MoveExperts(lease, (MovesEnded("another shell has taken over"),))
        for event in await self._ask(one, call, STOP_DEADLINE_S):
            if isinstance(event, MovesStopped):
                self.experts.on_stopped(one.name.rank, pid, event.held)

    async def _ask(self, one: KnownRank, call: MoveExperts, limit_s: float) -> tuple[RankEvent, ...]:
        """Returns: no answers if the rank gives none."""
        try:
            return await self._port.tell(one.name, call, limit_s)
        except (RankDeadError, RankSilentError) as error:
            logger.warning("%s does not say what comes of moves: %s", one.name.replica, error)
            return ()
