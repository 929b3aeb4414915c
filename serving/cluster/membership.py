"""Membership: instances announce themselves to one small named actor, gateways read it.

All its data expire: an instance that stops announcing is dropped, and after the actor's own death the next
announcements rebuild it. It stores addresses only; load is sent over the links. An instance on a node that Ray declared
dead is not listed: its replacement may already have its NPUs.

Long polling: a request returns immediately if a member has joined, left or moved since the reader's last response,
otherwise after a timeout with the latest facts. Every gateway receives a replacement's address within milliseconds.
"""

import asyncio
import contextlib
import logging
import math
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray

from serving.cluster.disk_watch import own_full_disk
from serving.cluster.gcs_store import ActorLookup
from serving.cluster.nodes import ON_HEAD_NODE, LostNodeWatch
from serving.deadline import within
from serving.errors import UnavailableError
from serving.ids import NodeId, ReplicaId
from serving.values.group import OperatorOrder, OrderAnswer, PostedOrder, SizeOrder

logger = logging.getLogger(__name__)

NAME = "cloudmatrix-membership"
NAMESPACE = "cloudmatrix"
ANNOUNCE_PERIOD_S = 1.0
IDLE_PERIOD_S = 2.0
"""Announcement period of an instance whose facts stay as they are."""
EXPIRY_S = 5.0
CALL_DEADLINE_S = 3.0
LEAST_WAIT_S = 0.01
_AGES = frozenset({"told_s", "progress_age_s", "pull_age_s"})
"""Facts that change by time alone."""
NO_ADDRESS = "", 0
"""Host and port of a rank without sequences, to which gateways do not connect."""
DISK_FULL = "disk_full"
"""Fact of a member, see `with_disk`."""

assert EXPIRY_S >= CALL_DEADLINE_S + IDLE_PERIOD_S, "one lost call must not cost an instance its place"


@dataclass(frozen=True, slots=True)
class Member:
    """One instance's address. `incarnation` distinguishes a restarted replica from its predecessor."""

    replica: ReplicaId
    pool: str
    node: NodeId
    host: str
    port: int
    incarnation: str
    facts: dict[str, Any]
    """Data for status pages: NPUs, HBM, blocks, counters. Refreshed with each announcement."""

    @property
    def is_instance(self) -> bool:
        """Whether gateways connect to it."""
        return self.port > 0


def with_disk(member: Member, look: Callable[[], str] = own_full_disk) -> Member:
    """The member with `disk_full` among its facts: a message about its host's disk, empty if that is not full."""
    return replace(member, facts={**member.facts, DISK_FULL: look()})


def announce_pause_s(before: Member | None, member: Member) -> float:
    """Time until the next announcement [s].

    Args:
        before: the previous announcement; None = there was none, or it failed.
    """
    if before is None or replace(before, facts={}) != replace(member, facts={}):
        return ANNOUNCE_PERIOD_S
    changed = {name for name, value in member.facts.items() if before.facts.get(name) != value}
    return IDLE_PERIOD_S if changed <= _AGES else ANNOUNCE_PERIOD_S


class Roster:
    """Members with their expiry. Time is an argument, so that tests need not wait."""

    def __init__(self, expiry_s: float = EXPIRY_S) -> None:
        self._expiry_s = expiry_s
        self._members: dict[ReplicaId, tuple[Member, float]] = {}
        self._lost: frozenset[NodeId] = frozenset()
        self.version = 0
        """Increases when a member joins, moves, is lost or withdraws; not on refreshed facts or expiry."""

    def announce(self, member: Member, now: float) -> None:
        """Add or refresh a member, unless its node is lost."""
        if member.node in self._lost:
            return
        known = self._members.get(member.replica)
        if known is None or known[0].incarnation != member.incarnation:
            self.version += 1
        self._members[member.replica] = (member, now + self._expiry_s)

    def withdraw(self, replica: ReplicaId) -> None:
        """Remove a member. Unknown ids are ignored."""
        if self._members.pop(replica, None) is not None:
            self.version += 1

    def lose(self, nodes: frozenset[NodeId]) -> None:
        """Replace the set of dead nodes and remove their members."""
        self._lost = nodes
        for replica in [replica for replica, (member, _) in self._members.items() if member.node in nodes]:
            self.withdraw(replica)

    def lasts_s(self, now: float) -> float:
        """Time until the next member expires unless it announces itself again [s]; infinite without members."""
        return min((expires - now for _, expires in self._members.values()), default=math.inf)

    def members(self, now: float) -> list[Member]:
        """Members that announced themselves recently, by pool and name."""
        self._members = {r: (m, t) for r, (m, t) in self._members.items() if t > now}
        return sorted((m for m, _ in self._members.values()), key=lambda m: (m.pool, m.replica))


@dataclass(frozen=True, slots=True)
class Listing:
    """Response to a reader, which sends `version` in its next request."""

    version: str
    members: list[Member]


@ray.remote(num_cpus=0, max_restarts=-1)
class MembershipActor:
    """The named actor around a `Roster`. Its methods share one event loop and need no locks."""

    def __init__(self) -> None:
        self._roster = Roster()
        self._life = secrets.token_hex(4)
        self._changed = asyncio.Event()
        self._watch: LostNodeWatch | None = None

    async def announce(self, member: Member) -> None:
        """Add or refresh a member."""
        if self._watch is None:
            loop = asyncio.get_running_loop()

            def lose(nodes: frozenset[NodeId]) -> None:
                loop.call_soon_threadsafe(self._lose, nodes)

            self._watch = LostNodeWatch(lose)
            self._watch.start()
        before = self._roster.version
        self._roster.announce(member, time.monotonic())
        self._tell(before)

    async def withdraw(self, replica: ReplicaId) -> None:
        """Remove a member."""
        before = self._roster.version
        self._roster.withdraw(replica)
        self._tell(before)

    async def members(self) -> list[Member]:
        """Live members."""
        return self._roster.members(time.monotonic())

    async def listing(self, known: str, patience_s: float) -> Listing:
        """Live members, as soon as they differ from version `known` or one may have expired, at the latest after
        `patience_s`.
        """
        if known == self._version():
            lasts_s = self._roster.lasts_s(time.monotonic())
            with contextlib.suppress(TimeoutError):
                await within(self._changed.wait(), max(LEAST_WAIT_S, min(patience_s, lasts_s)))
        return Listing(self._version(), self._roster.members(time.monotonic()))

    def _lose(self, nodes: frozenset[NodeId]) -> None:
        before = self._roster.version
        self._roster.lose(nodes)
        self._tell(before)

    def _version(self) -> str:
        return f"{self._life}-{self._roster.version}"

    def _tell(self, before: int) -> None:
        if self._roster.version != before:
            self._changed.set()  # wakes all waiting readers
            self._changed = asyncio.Event()


def membership() -> Any:
    """The cluster's membership actor, created on first use."""
    actor_class: Any = MembershipActor
    return actor_class.options(
        name=NAME, namespace=NAMESPACE, get_if_exists=True, lifetime="detached", resources=ON_HEAD_NODE
    ).remote()


class Announcer:
    """Announces one instance until stopped; survives the death of the actor."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._lookup = ActorLookup(membership)
        self._actor: Any = None
        self._replica: ReplicaId | None = None

    def start(self, describe: Any) -> None:
        """Start to announce `describe()` every second, or every two while it stays as it is."""
        self._task = asyncio.create_task(self._forever(describe))

    async def _forever(self, describe: Any) -> None:
        before: Member | None = None
        while True:
            try:
                self._actor = self._actor or await self._lookup.answer(CALL_DEADLINE_S)
                member = with_disk(describe())
                self._replica = member.replica
                await within(self._actor.announce.remote(member), CALL_DEADLINE_S)
                pause_s, before = announce_pause_s(before, member), member
            except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
                logger.warning("membership does not respond (%s); trying again", type(error).__name__)
                self._actor = before = None
                pause_s = ANNOUNCE_PERIOD_S
            await asyncio.sleep(pause_s)

    async def stop(self) -> None:
        """Withdraw and stop."""
        if self._task is not None:
            self._task.cancel()
        if self._actor is not None and self._replica is not None:
            try:
                await within(self._actor.withdraw.remote(self._replica), CALL_DEADLINE_S)
            except (ray.exceptions.RayError, TimeoutError):
                logger.info("could not withdraw %s; its entry expires by itself", self._replica)


async def read_members(actor: Any) -> list[Member]:
    """Live members.

    Raises: TimeoutError, ray.exceptions.RayError.
    """
    members: list[Member] = await within(actor.members.remote(), CALL_DEADLINE_S)
    return members


class MemberReader:
    """Reads membership repeatedly, for one gateway."""

    def __init__(self) -> None:
        self._lookup = ActorLookup(membership)
        self._actor: Any = None
        self._version = ""

    async def read(self, patience_s: float) -> list[Member]:
        """Live members: immediately if they have changed since the last call, otherwise after `patience_s`.

        Raises: TimeoutError, ray.exceptions.RayError, ValueError if membership does not respond; call it again.
        """
        self._actor = self._actor or await self._lookup.answer(CALL_DEADLINE_S)
        try:
            question = self._actor.listing.remote(self._version, patience_s)
            listing: Listing = await within(question, patience_s + CALL_DEADLINE_S)
        except BaseException:
            self._actor = None
            raise
        self._version = listing.version
        return listing.members


# Operators' commands from gateways to the shell of a group, through one of its ranks, see `Mailbox` there.

LOOKUP_DEADLINE_S = 3.0
MARGIN_S = 3.0
"""Margin beyond the deadline of the rank itself."""


async def post_order(actor: str, order: OperatorOrder | SizeOrder, limit_s: float) -> OrderAnswer:
    """Send a command to a group and wait for its shell's response.

    Args:
        actor: name of any of the group's ranks.
        limit_s: response timeout of the shell [s].
    Raises: UnavailableError if the rank has ended or does not respond.
    """
    try:
        rank: Any = await ActorLookup(partial(ray.get_actor, actor, NAMESPACE)).answer(LOOKUP_DEADLINE_S)
        reply = rank.post_order.remote(PostedOrder(uuid.uuid4().hex, order), limit_s)
        answer: OrderAnswer = await within(reply, limit_s + MARGIN_S)
    except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
        raise UnavailableError(
            f"the rank did not respond ({type(error).__name__}); `cloudmatrix experts` shows the result of the command",
            retry_after_s=LOOKUP_DEADLINE_S,
        ) from error
    return answer
