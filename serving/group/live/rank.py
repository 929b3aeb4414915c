"""One rank without Ray: it is built, joins its peers, serves and drains on command of its shell.

The Ray actor forwards calls to it.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from serving.deadline import within
from serving.errors import ConfigError, GroupError, in_words
from serving.group.core.rank_life import RankLife, counted_size
from serving.instance.live.collector import collector_off
from serving.instance.live.compute import GroupMember
from serving.values.expert_map import ExpertOrder, RankEvent
from serving.values.group import (
    OrderAnswer,
    PostedOrder,
    RankLease,
    RankOffer,
    RankPhase,
    RankReport,
    RankRole,
    RegroupOrder,
)
from serving.values.instances import InstancePlace

logger = logging.getLogger(__name__)

_CAN_FOLLOW = frozenset({RankPhase.OFFERED, RankPhase.SERVING, RankPhase.LEAVING, RankPhase.LEFT})


class RankRuntime(Protocol):
    """Program of a rank: an instance, or the experts of a rank without sequences."""

    @property
    def member(self) -> GroupMember:
        """Place in the group."""
        ...

    def offer(self) -> RankOffer:
        """Facts that its peers and its shell need."""
        ...

    def follow(self, order: RegroupOrder) -> None:
        """Compute with these members, see `GroupMember.follow`. Blocks. Raises: GroupError."""
        ...

    async def start(self) -> tuple[str, int] | None:
        """Serve. Returns: the address for gateways; None if it has none. Raises: ConfigError, OSError."""
        ...

    def move(self, host: str) -> tuple[str, int] | None:
        """Also listen on another address of this host. Returns: as `start`. Raises: as `start`."""
        ...

    def hold(self, share: float, stall_timeout_s: float) -> tuple[float, int | None]:
        """Take the share of sequences that it is to request from gateways.

        Returns: time that it has had work without progress [s], 0 if that is not too long; the rank for which it has
            waited longer than a step may take.
        """
        ...

    async def leave(self, drain_s: float) -> None:
        """Hand its sequences on; returns when it has none."""
        ...

    def quit(self) -> None:
        """Stop computing. Blocks for a moment."""
        ...

    def close_log(self) -> None:
        """End the decision log, if there is one. May block."""
        ...

    async def stop(self) -> None:
        """Stop all parts and free the memory."""
        ...

    def facts(self) -> dict[str, Any]:
        """Facts for status pages and metrics."""
        ...


class Rank:
    """One rank. Belongs to one event loop.

    Args:
        founder: lease of the shell that made it.
        make: builds what it runs; slow, called on a thread.
        stall_timeout_s: see `RankRuntime.hold`.
    """

    def __init__(
        self,
        place: InstancePlace,
        founder: RankLease,
        make: Callable[[], RankRuntime],
        stall_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert place.rank is not None
        self.place = place
        self._rank = place.rank
        self._size = place.rank.ranks
        self._make = make
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._life = RankLife(founder, clock())
        self._runtime: RankRuntime | None = None
        self.address: tuple[str, int] | None = None
        """Address for gateways, once it serves; None for a rank without sequences."""
        self._following = asyncio.Lock()
        self._leaving: asyncio.Task[None] | None = None
        self._has_quit = False
        self.mailbox = Mailbox()
        self.shown: dict[str, Any] = {}
        """Facts of the whole group, from its shell."""

    async def build(self) -> None:
        """Build what it runs. A failure is in the next report."""
        try:
            with collector_off():
                self._runtime = await asyncio.to_thread(self._make)
        except Exception as error:
            logger.exception("%s could not be built", self.place.replica)
            self._life.enter(RankPhase.FAILED, in_words(error))
        else:
            self._life.enter(RankPhase.OFFERED)

    def hold(self, asker: RankLease) -> RankReport:
        """Renew a shell's lease, or let the shell take the rank over; with term 0, only report."""
        self._life.hold(asker, self._clock())
        runtime, life = self._runtime, self._life
        report = RankReport(
            life.lease, life.phase, os.getpid(), self.place.node, problem=life.problem, orders=self.mailbox.waiting()
        )
        if runtime is None:
            return report
        stalled_s, late_peer = runtime.hold(life.lease.share, self._stall_timeout_s)
        member = runtime.member
        report = replace(report, offer=runtime.offer(), version=member.version, using=member.using, stalled_s=stalled_s)
        order = member.order
        if order is None:
            return report
        return replace(
            report,
            members=order.processes(),
            experts=order.processes(with_experts=True),
            epoch=order.epoch,
            raised=member.raised,
            late_peer=late_peer,
            unreachable=member.unreachable,
        )

    async def follow(self, order: RegroupOrder) -> bool:
        """Compute with these members from the order's epoch on; the first order makes the rank serve.

        A drained rank follows as well: it computes its experts until `quit`, and a member without the new map would
        keep all others on the old one.

        Returns: whether the rank has started to serve.
        Raises: GroupError if it cannot follow, so that no epoch starts with it.
        """
        async with self._following:
            runtime, phase = self._runtime, self._life.phase
            if runtime is None or self._has_quit or phase not in _CAN_FOLLOW:
                raise GroupError(f"{self.place.replica} is {phase.value} and is not part of a group")
            try:
                await asyncio.to_thread(runtime.follow, order)
                if phase is not RankPhase.OFFERED:
                    return False
                self.address = await runtime.start()
            except (GroupError, ConfigError, OSError) as error:
                logger.exception("%s could not join its group", self.place.replica)
                if phase is RankPhase.OFFERED:
                    self._life.enter(RankPhase.FAILED, str(error))
                raise GroupError(str(error)) from error
            self._life.enter(RankPhase.SERVING)
            return True

    def listen_at(self, host: str) -> None:
        """Listen on another address of this host too."""
        if self._runtime is not None:
            self.address = self._runtime.move(host)

    def begin(self, epoch: int, members: Sequence[int]) -> None:
        """Start an epoch, whose members have all received the order."""
        if self._runtime is not None and self._runtime.member.order is not None:
            self._runtime.member.begin(epoch, members)

    async def move(self, asker: RankLease, orders: Sequence[ExpertOrder]) -> tuple[RankEvent, ...]:
        """Carry out commands of the shell's mover.

        Returns: events of all commands, after the last of them is done or has failed.
        Raises: GroupError if another shell holds this rank, or the rank has not joined yet.
        """
        runtime = self._runtime
        if asker.shell != self._life.lease.shell or runtime is None or runtime.member.order is None:
            raise GroupError(f"{self.place.replica} accepts no expert moves from shell {asker.shell}")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[RankEvent, ...]] = loop.create_future()

        def settle(events: tuple[RankEvent, ...]) -> None:
            if not done.done():  # the caller has been cancelled
                done.set_result(events)

        def answered(events: tuple[RankEvent, ...]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, events)

        runtime.member.carry_out(orders, answered)
        return await done

    def leave(self, drain_s: float) -> None:
        """Start to drain; reports of `hold` have the progress. Idempotent."""
        if self._life.phase is RankPhase.OFFERED:
            self._life.enter(RankPhase.LEFT)
        elif self._life.phase is RankPhase.SERVING:
            self._life.enter(RankPhase.LEAVING)
            self._leaving = asyncio.create_task(self._leave(drain_s))

    async def quit(self) -> None:
        """Stop computing with the group, which continues without this rank. Idempotent."""
        async with self._following:
            self._has_quit = True
            if self._runtime is not None:
                await asyncio.to_thread(self._runtime.quit)

    def close_log(self) -> None:
        """End the decision log, if there is one. May block."""
        if self._runtime is not None:
            self._runtime.close_log()

    def lapsed(self) -> bool:
        """Whether no shell has renewed the lease for too long. Call it every second."""
        return self._life.lapsed(self._clock())

    async def stop(self) -> None:
        """Stop what it runs and release its memory. Remaining sequences are lost."""
        if self._leaving is not None:
            self._leaving.cancel()
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.stop()

    def facts(self) -> dict[str, Any]:
        """Facts for status pages and metrics: those of what it runs, its group and its shell."""
        assert self._runtime is not None
        order = self._runtime.member.order
        lease = self._life.lease
        members = order.members if order is not None else ()
        self._size = counted_size(self._size, lease.ranks, len(members))
        return {
            "pid": os.getpid(),
            "group": self._rank.group,
            "rank": self._rank.number,
            "role": self._rank.role.value,
            "ranks": self._size,
            "ranks_wanted": lease.ranks,
            "expert_ranks": lease.expert_size,
            "first_expert": self._rank.most // 2 if self._rank.role is not RankRole.BOTH else None,
            "shell": lease.shell,
            "shell_pid": lease.pid,
            "of_group": self.shown,
            **self._runtime.facts(),
        }

    async def _leave(self, drain_s: float) -> None:
        assert self._runtime is not None
        await self._runtime.leave(drain_s)
        self._life.enter(RankPhase.LEFT)


# Mailbox of a rank for operators' commands to the shell of its group.
#
# A gateway posts a command at any rank (`post_order` in `serving.cluster.membership`) and waits for the response until
# a deadline. The shell, possibly a new one, reads the commands in the rank's report every half second and responds at
# the same rank. If the rank dies, its commands are lost and the gateway gets an error.


class Mailbox:
    """Commands at one rank. Belongs to one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[PostedOrder, asyncio.Future[OrderAnswer]]] = {}

    def waiting(self) -> tuple[PostedOrder, ...]:
        """Commands without a response, oldest first."""
        return tuple(posted for posted, _ in self._open.values())

    async def post(self, posted: PostedOrder, limit_s: float) -> OrderAnswer:
        """Post a command and wait for its response. Returns: a refusal if no shell has responded in time.

        Effects: without a response the command is withdrawn at the deadline; a shell that has already read it may still
            carry it out.
        """
        answer = asyncio.get_running_loop().create_future()
        self._open[posted.id] = posted, answer
        try:
            return await within(answer, limit_s)
        except TimeoutError:
            return OrderAnswer(False, f"the group's shell has not responded for {limit_s:g} s; it may be starting")
        finally:
            self._open.pop(posted.id, None)

    def answer(self, order: str, answer: OrderAnswer) -> None:
        """Deliver a response. One that is too late is dropped."""
        found = self._open.get(order)
        if found is not None and not found[1].done():
            found[1].set_result(answer)
