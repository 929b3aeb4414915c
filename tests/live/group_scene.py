"""Shells in a world of fake ranks, in a time that a test controls."""

import asyncio
import contextlib
from collections.abc import Callable

from serving.group.core.group_experts import ExpertRules
from serving.group.core.group_sides import GroupSizes
from serving.group.live.shell import GroupShell
from serving.values.group import RankPhase, RankRole
from tests.fakes.clock import ManualClock
from tests.fakes.rank_group import FakeWorld

PATIENCE_S = 30.0
SILENCE_S = 15.0


class Scene:
    """A world and its shells."""

    def __init__(self, ranks: int = 2, silence_s: float = SILENCE_S, spares: int = 0, experts: int = 0) -> None:
        """
        Args:
            experts: expert ranks; then the others are attention ranks. 0 = all have both roles.
        """
        self.world = FakeWorld()
        self.clock = ManualClock()
        self._ranks = ranks + experts
        self._sizes = [GroupSizes(ranks, 6, spares=spares, role=RankRole.ATTENTION if experts else RankRole.BOTH)]
        if experts:
            self._sizes.append(GroupSizes(experts, 6, spares=spares, role=RankRole.EXPERTS))
            self.world.first_expert = 6
        self.rules = ExpertRules()
        self._silence_s = silence_s
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, name: str) -> GroupShell:
        """Start a new shell."""
        self.world.shells.add(name)
        shell = GroupShell(
            "5e55",
            "decode",
            self._sizes,
            name,
            self.world.port,
            self._silence_s,
            0.0,
            self.rules,
            self.clock.now,
            0.002,
        )
        self._tasks[name] = asyncio.create_task(shell.live())
        return shell

    async def formed(self, name: str) -> GroupShell:
        """A new shell, as soon as its group serves."""
        shell = self.begin(name)
        await asyncio.wait_for(shell.formed.wait(), PATIENCE_S)
        return shell

    async def killed(self, name: str) -> None:
        """kill -9 of a shell."""
        self._tasks[name].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._tasks[name]
        self.world.shells.discard(name)

    async def close(self, shell: GroupShell) -> None:
        name = shell.lease.shell
        await asyncio.wait_for(shell.close(5.0, self._tasks[name]), PATIENCE_S)
        self.world.shells.discard(name)

    async def ended(self, name: str) -> None:
        """Wait until a shell ends by itself. Raises: its exception."""
        await asyncio.wait_for(self._tasks[name], PATIENCE_S)

    def serving(self, group: str, size: int | None = None) -> list[int]:
        """Processes of a group whose ranks all serve together, else none.

        Args:
            size: number of ranks; the initial one by default.
        """
        ranks = self.world.of(group)
        pids = [rank.pid for rank in ranks]
        well = len(ranks) == (size or self._ranks) and all(rank.life.phase is RankPhase.SERVING for rank in ranks)
        return pids if well and all(rank.computes_with == pids for rank in ranks) else []

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - the world has no event
                await asyncio.sleep(0.001)
