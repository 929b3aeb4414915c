"""One rank without Ray: an instance that is built, joins its peers, serves and drains on command of its shell.

The Ray actor forwards calls to it.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from serving.deadline import within
from serving.errors import ConfigError, GroupError, in_words
from serving.group.core.group_course import LONGEST_AGE_S
from serving.group.core.rank_life import RankLife, counted_size
from serving.instance.live.collector import collector_off
from serving.instance.live.instance import Instance
from serving.values.expert_map import ExpertOrder, RankEvent
from serving.values.group import OrderAnswer, PostedOrder, RankLease, RankPhase, RankReport, RegroupOrder
from serving.values.instances import InstancePlace

logger = logging.getLogger(__name__)

_CAN_FOLLOW = frozenset({RankPhase.OFFERED, RankPhase.SERVING, RankPhase.LEAVING, RankPhase.LEFT})


class Rank:
    """One rank. Belongs to one event loop.

    Args:
        founder: lease of the shell that made it.
        make: builds the instance; slow, called on a thread.
        stall_timeout_s: see `Instance.stalled`.
    """

    def __init__(
        self,
        place: InstancePlace,
        founder: RankLease,
        make: Callable[[], Instance],
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
        self._instance: Instance | None = None
        self.address: tuple[str, int] | None = None
        """Address for gateways, once it serves."""
        self._following = asyncio.Lock()
        self._leaving: asyncio.Task[None] | None = None
        self._has_quit = False
        self.mailbox = Mailbox()
        self.shown: dict[str, Any] = {}
        """Facts of the whole group, from its shell."""

    async def build(self) -> None:
        """Build the instance. A failure is in the next report."""
        try:
            with collector_off():
                self._instance = await asyncio.to_thread(self._make)
        except Exception as error:
            logger.exception("%s could not be built", self.place.replica)
            self._life.enter(RankPhase.FAILED, in_words(error))
        else:
            self._life.enter(RankPhase.OFFERED)

    def hold(self, asker: RankLease) -> RankReport:
        """Renew a shell's lease, or let the shell take the rank over; with term 0, only report."""
        self._life.hold(asker, self._clock())
        instance, life = self._instance, self._life
        if instance is not None:
            instance.server.share = life.lease.share
        order = instance.member.order if instance is not None else None
        stalled = instance is not None and instance.stalled(self._stall_timeout_s)
        return RankReport(
            lease=life.lease,
            phase=life.phase,
            pid=os.getpid(),
            node=self.place.node,
            offer=instance.offer() if instance is not None else None,
            members=tuple(one.pid for one in sorted(order.offers, key=lambda one: one.rank))
            if order is not None
            else (),
            epoch=order.epoch if order is not None else 0,
            raised=instance.member.raised if order is not None and instance is not None else 0,
            version=instance.member.version if instance is not None else 0,
            using=instance.member.using if instance is not None else 0,
            stalled_s=min(instance.loop.progress_age_s(), LONGEST_AGE_S) if instance is not None and stalled else 0.0,
            problem=life.problem,
            late_peer=instance.late_peer() if instance is not None and order is not None else None,
            orders=self.mailbox.waiting(),
        )

    async def follow(self, order: RegroupOrder) -> bool:
        """Compute with these members from the order's epoch on; the first order makes the rank serve.

        A drained rank follows as well: it computes its experts until `quit`, and a member without the new map would
        keep all others on the old one.

        Returns: whether the rank has started to serve.
        Raises: GroupError if it cannot follow, so that no epoch starts with it.
        """
        async with self._following:
            instance, phase = self._instance, self._life.phase
            if instance is None or self._has_quit or phase not in _CAN_FOLLOW:
                raise GroupError(f"{self.place.replica} is {phase.value} and is not part of a group")
            try:
                await asyncio.to_thread(instance.follow, order)
                if phase is not RankPhase.OFFERED:
                    return False
                self.address = await instance.start()
            except (GroupError, ConfigError, OSError) as error:
                logger.exception("%s could not join its group", self.place.replica)
                if phase is RankPhase.OFFERED:
                    self._life.enter(RankPhase.FAILED, str(error))
                raise GroupError(str(error)) from error
            self._life.enter(RankPhase.SERVING)
            return True

    def listen_at(self, host: str) -> None:
        """Listen on another address of this host too, as `Instance.move`."""
        if self._instance is not None:
            self._instance.move(host)
            self.address = self._instance.address

    def begin(self, epoch: int, members: Sequence[int]) -> None:
        """Start an epoch, whose members have all received the order."""
        if self._instance is not None and self._instance.member.order is not None:
            self._instance.member.begin(epoch, members)

    async def move(self, asker: RankLease, orders: Sequence[ExpertOrder]) -> tuple[RankEvent, ...]:
        """Carry out commands of the shell's mover.

        Returns: events of all commands, after the last of them is done or has failed.
        Raises: GroupError if another shell holds this rank, or the rank has not joined yet.
        """
        instance = self._instance
        if asker.shell != self._life.lease.shell or instance is None or instance.member.order is None:
            raise GroupError(f"{self.place.replica} accepts no expert moves from shell {asker.shell}")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[RankEvent, ...]] = loop.create_future()

        def settle(events: tuple[RankEvent, ...]) -> None:
            if not done.done():  # the caller has been cancelled
                done.set_result(events)

        def answered(events: tuple[RankEvent, ...]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, events)

        instance.member.carry_out(orders, answered)
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
            if self._instance is not None:
                await asyncio.to_thread(self._instance.quit)

    def close_log(self) -> None:
        """End the decision log, if there is one. May block."""
        if self._instance is not None:
            self._instance.close_log()

    def lapsed(self) -> bool:
        """Whether no shell has renewed the lease for too long. Call it every second."""
        return self._life.lapsed(self._clock())

    async def stop(self) -> None:
        """Stop the instance and release its memory. Remaining sequences are lost."""
        if self._leaving is not None:
            self._leaving.cancel()
        instance, self._instance = self._instance, None
        if instance is not None:
            await instance.stop()

    def facts(self) -> dict[str, Any]:
        """Facts for status pages and metrics: those of the instance, its group and its shell."""
        assert self._instance is not None
        order = self._instance.member.order
        members = len(order.offers) if order is not None else 0
        self._size = counted_size(self._size, self._life.lease.size, members)
        return {
            "pid": os.getpid(),
            "group": self._rank.group,
            "rank": self._rank.number,
            "ranks": self._size,
            "ranks_wanted": self._life.lease.size,
            "shell": self._life.lease.shell,
            "shell_pid": self._life.lease.pid,
            "of_group": self.shown,
            **self._instance.facts(),
        }

    async def _leave(self, drain_s: float) -> None:
        assert self._instance is not None
        await self._instance.server.leave(drain_s)
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
