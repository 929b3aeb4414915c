"""Search for groups that a new shell may take over, and for abandoned placements in Ray."""

import asyncio
import logging
from collections.abc import Collection

from serving.group.core.group_takeover import SeenGroup, abandoned, spare_places
from serving.group.core.rank_names import RankName
from serving.group.live.group_port import FoundRanks, GroupPort, RankDeadError, RankSilentError
from serving.values.group import RankLease, RankReport

logger = logging.getLogger(__name__)

ASK_DEADLINE_S = 3.0


class GroupSearch:
    """Groups of one pool in one start of the system."""

    def __init__(self, port: GroupPort, session: str, pool: str) -> None:
        self._port, self._session, self._pool = port, session, pool

    async def groups(self, found: FoundRanks, asker: RankLease) -> list[SeenGroup]:
        """The pool's groups, with the latest shell that their ranks report.

        Args:
            asker: a lease of term 0, which changes nothing at the ranks.
        """
        names = [name for name in found.ranks if name.pool == self._pool and name.session == self._session]
        reports = await asyncio.gather(*(self._ask(name, asker) for name in names))
        groups = []
        for group in sorted({name.group for name in names}):
            told = [one for name, one in zip(names, reports, strict=True) if name.group == group and one is not None]
            newest = max((one.lease for one in told), key=lambda lease: lease.term, default=None)
            if newest is None:
                groups.append(SeenGroup(group, group.partition("#")[2]))
            else:
                groups.append(SeenGroup(group, newest.shell, newest.term, newest.size, newest.former))
        return groups

    async def sweep(self, found: FoundRanks, own: str, ranks: Collection[int], size: int) -> None:
        """Remove abandoned placements.

        Args:
            own: name of the caller's group. ranks: those of its ranks with a process. size: its target size.
        """
        groups = {name.group for name in found.ranks} | {own}
        for group in abandoned(found.places, groups, found.shells):
            logger.warning("%s has a placement group but no ranks; releasing it", group)
            await self._remove(group, None)
        for rank in spare_places([rank for group, rank in found.added if group == own], ranks, size):
            logger.warning("rank %d of %s has a placement group but no process; releasing it", rank, own)
            await self._remove(own, rank)

    async def _remove(self, group: str, rank: int | None) -> None:
        try:
            await self._port.remove(group, rank)
        except RankSilentError as error:
            logger.warning("could not release the placement group of %s: %s", group, error)

    async def _ask(self, name: RankName, lease: RankLease) -> RankReport | None:
        try:
            return await self._port.hold(name, lease, ASK_DEADLINE_S)
        except (RankDeadError, RankSilentError):
            return None
