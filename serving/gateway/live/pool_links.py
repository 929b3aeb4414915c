"""The gateway's links to all instances, kept in step with membership.

A link decides whether an instance is alive; membership only provides addresses. A member that is no longer listed gets
no new link, but its open link serves until it closes. While membership is unavailable, links stay as they are.

Failures that end a link, and how soon they are detected:

    the process dies        its socket closes                                    immediately
    the process freezes     no message arrives                                   `[health] link_period_s * link_misses`
    its engine hangs        its process reports that a step takes too long       `[health] step_stall_s`, or more

When a link ends, the gateway resubmits its sequences to other instances, and the instance cancels them as soon as it
detects the closed link; a frozen process does so when it resumes. An instance whose engine hangs gets a new link, but
no request is sent to it until the engine makes progress again.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from serving.errors import LinkError, in_words
from serving.ids import BlockHash, GatewayId, NodeId, ReplicaId
from serving.sockets.secrets import ClusterSecrets
from serving.values.health import Silence, hangs
from serving.values.instances import CRASHED_AGE_S, Status
from serving.values.news import Value
from serving.values.orders import Add, Adopt
from serving.wire import messages as m
from serving.wire.connection import Connection, connect_proving

# The gateway's side of one link: connects, identifies itself, stores the instance's last reported load.

CONNECT_DEADLINE_S = 5.0


class InstanceLink:
    """One connection to one instance. Created for each attempt; never reconnects.

    Args:
        on_frame, on_status: called with every `Frame` and `Status`; statuses may precede the link being up.
        on_down: called exactly once after `connect` succeeded, when the link ends for any reason.
    """

    def __init__(
        self,
        replica: ReplicaId,
        incarnation: str,
        on_frame: Callable[["InstanceLink", m.Frame], None],
        on_status: Callable[["InstanceLink", Status], None],
        on_down: Callable[["InstanceLink", str], None],
    ) -> None:
        self.replica = replica
        self.incarnation = incarnation
        self.welcome: m.InstanceWelcome | None = None
        self.status: Status | None = None
        self.facts: dict[str, Any] = {}
        """The last `InstanceFacts`."""
        self.received_at = 0.0
        self.still_since: float | None = None
        """Time of the last progress of an instance given up for silence, or for a hanging engine [s]; 0 = it left."""
        self.used = False
        """Whether any sequence was sent to the instance over this link."""
        self._on_frame = on_frame
        self._on_status = on_status
        self._on_down = on_down
        self._connection: Connection | None = None
        self._welcomed: asyncio.Future[None] | None = None
        self._asked: deque[asyncio.Future[dict[str, Any]]] = deque()

    async def connect(self, host: str, port: int, gateway: GatewayId, secret: str | ClusterSecrets) -> None:
        """Connect and wait for the instance's `Welcome`.

        Raises: LinkError if there is no instance, it refuses, or it does not respond in time.
        """
        self._welcomed = asyncio.get_running_loop().create_future()
        self._connection = connection = Connection(self._receive, self._closed)
        secrets, hello = ClusterSecrets.of(secret), m.GatewayHello(gateway)
        try:
            async with asyncio.timeout(CONNECT_DEADLINE_S):
                await connect_proving(
                    connection, (host, port), m.LINK_CHANNEL, "gateway", secrets, lambda: connection.send(hello)
                )
                await self._welcomed
        except (OSError, TimeoutError, LinkError) as error:
            self._give_up()
            raise LinkError(f"no link to {self.replica} at {host}:{port}: {in_words(error)}") from error
        except asyncio.CancelledError:
            self._give_up()
            raise

    def _give_up(self) -> None:
        self._welcomed = None
        if self._connection is not None:
            self._connection.close("gave up")

    @property
    def up(self) -> bool:
        """Whether the link is open and the instance's engine makes progress."""
        return self.welcome is not None and self._connection is not None and self._connection.open and not self.hangs

    @property
    def hangs(self) -> bool:
        """Whether the instance responds but reports that its engine has been at one step for too long."""
        status = self.status
        return status is not None and status.step_limit_s > 0 and hangs(status.progress_age_s, status.step_limit_s)

    def send(self, message: Value) -> bool:
        """Send one message; False when the link is down (then `on_down` has been or will be called).

        Raises: LinkError if it is too large.
        """
        self.used = self.used or isinstance(message, Add | Adopt)
        return self._connection is not None and self._connection.send(message)

    def ask_facts(self, hashes: tuple[BlockHash, ...] = ()) -> asyncio.Future[dict[str, Any]]:
        """Request the instance's counters, or with `hashes` what it has of a chain.

        Returns: done when the response has arrived, or with nothing when the link is down.
        """
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        try:
            sent = self.send(m.FactsRequest(hashes))
        except LinkError:  # more hashes than a frame holds
            sent = False
        if sent:
            self._asked.append(answered)  # responses arrive in the order of the requests
        else:
            answered.set_result({})
        return answered

    def _answered(self, facts: dict[str, Any]) -> None:
        if self._asked and not (asked := self._asked.popleft()).done():
            asked.set_result(facts)

    def close(self, reason: str) -> None:
        """Close the link; `on_down` follows."""
        if self._connection is not None:
            self._connection.close(reason)

    def _receive(self, connection: Connection, body: bytes) -> None:
        self.received_at = asyncio.get_running_loop().time()
        message = m.decode_to_gateway(body)
        match message:
            case m.Frame():
                self._on_frame(self, message)
            case Status():
                self.status = message
                self._on_status(self, message)
            case m.InstanceFacts():
                if "prefix_blocks" not in message.facts:
                    self.facts = message.facts
                self._answered(message.facts)
            case m.InstanceWelcome():
                self.welcome = message
                if self._welcomed is not None and not self._welcomed.done():
                    self._welcomed.set_result(None)

    def _closed(self, connection: Connection, reason: str) -> None:
        while self._asked:
            self._answered({})
        if self.welcome is None or self._welcomed is None:
            if self._welcomed is not None and not self._welcomed.done():
                self._welcomed.set_exception(LinkError(reason))
                with contextlib.suppress(LinkError):
                    self._welcomed.exception()
            return
        self._on_down(self, reason)


# The gateway's links to all instances, kept in step with membership.

logger = logging.getLogger(__name__)

SILENCE_LIMIT_S = 2.5
"""Default that follows from `[health]`."""

FACTS_S = 0.2
"""How long a page of metrics waits for the instances' counters; without a response the previous ones are shown."""


class Address(Protocol):
    """Address of an instance, from membership."""

    @property
    def replica(self) -> ReplicaId: ...
    @property
    def pool(self) -> str: ...
    @property
    def node(self) -> NodeId: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def facts(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """Callbacks of a link. `on_up` after a link is usable, `on_down` when it no longer is."""

    on_frame: Callable[[InstanceLink, m.Frame], None]
    on_status: Callable[[InstanceLink, Status], None]
    on_up: Callable[[InstanceLink], None]
    on_down: Callable[[InstanceLink, str], None]


class PoolLinks:
    """All links of one gateway.

    Args:
        silence_s: an instance silent for longer counts as frozen or unreachable, even if its port accepts [s].
    """

    def __init__(
        self, gateway: GatewayId, secret: str | ClusterSecrets, events: LinkEvents, silence_s: float = SILENCE_LIMIT_S
    ) -> None:
        self._gateway = gateway
        self._secret = secret
        self._events = events
        self._links: dict[ReplicaId, InstanceLink] = {}
        self._closed = False
        self._connecting: dict[ReplicaId, asyncio.Task[None]] = {}
        self._reported: set[ReplicaId] = set()
        """Listed members whose failed connection is in the log already: a dead one stays listed for seconds."""
        self._silence = Silence(silence_s, 0.0)

    def update(self, members: Iterable[Address]) -> None:
        """Connect to members without a link. Call it with each fresh listing."""
        if self._closed:
            return
        members = list(members)
        self._reported &= {member.replica for member in members}
        for member in members:
            link = self._links.get(member.replica)
            if link is not None and link.incarnation != member.incarnation:
                link.close("the replica was restarted")
            elif link is None and member.replica not in self._connecting:
                task = asyncio.create_task(self._connect(member))
                self._connecting[member.replica] = task
                task.add_done_callback(partial(self._connected, member.replica))

    def check_silence(self) -> float:
        """Close links whose instance has been silent for too long, or reports that its engine hangs.

        Returns: time until the next call is due [s].
        """
        now = asyncio.get_running_loop().time()
        self._silence.look(now)
        for link in list(self._links.values()):
            if self._silence.too_long(link.received_at, now):
                link.still_since = link.received_at
                link.close(f"silent for {now - link.received_at:.1f} s")
            elif link.hangs and link.used and link.status is not None:
                age_s = link.status.progress_age_s
                crashed = age_s >= CRASHED_AGE_S
                # It is unknown when a crashed engine last made progress: any submission sent to it may be the cause.
                link.still_since = None if crashed else now - age_s
                link.close("its engine has " + ("crashed" if crashed else f"been at one step for {age_s:.1f} s"))
        return self._silence.pause_s([link.received_at for link in self._links.values()], now)

    def link(self, replica: ReplicaId) -> InstanceLink | None:
        """The usable link to a replica, if there is one."""
        link = self._links.get(replica)
        return link if link is not None and link.up else None

    def hangs(self, replica: ReplicaId) -> bool:
        """Whether a replica responds while its engine has been at one step for too long."""
        link = self._links.get(replica)
        return link is not None and link.hangs

    def up(self) -> list[InstanceLink]:
        """All usable links."""
        return [link for link in self._links.values() if link.up]

    @property
    def pool_layout(self) -> str:
        """Layout of the instances' blocks in the KV-cache pool; empty = none is linked that uses it."""
        return next((one.welcome.pool_layout for one in self.up() if one.welcome and one.welcome.pool_layout), "")

    async def ask_facts(self) -> None:
        """Request every instance's counters, and wait up to `FACTS_S`. Effects: updates `InstanceLink.facts`."""
        if asked := [link.ask_facts() for link in self.up()]:
            await asyncio.wait(asked, timeout=FACTS_S)

    def close(self) -> None:
        """Close all links permanently: a later listing opens none."""
        self._closed = True
        for task in list(self._connecting.values()):
            task.cancel()
        for link in list(self._links.values()):
            link.close("the gateway stops")

    def _connected(self, replica: ReplicaId, _: "asyncio.Task[None]") -> None:
        self._connecting.pop(replica, None)

    async def _connect(self, member: Address) -> None:
        link = InstanceLink(
            member.replica, member.incarnation, self._events.on_frame, self._events.on_status, self._down
        )
        try:
            await link.connect(member.host, member.port, self._gateway, self._secret)
        except LinkError as error:
            if member.replica not in self._reported:
                logger.warning("%s; retrying while it is listed", error)
            self._reported.add(member.replica)
            return
        self._reported.discard(member.replica)
        self._links[member.replica] = link
        logger.info("linked to %s at %s:%d", member.replica, member.host, member.port)
        self._events.on_up(link)

    def _down(self, link: InstanceLink, reason: str) -> None:
        if self._links.get(link.replica) is link:
            del self._links[link.replica]
        if link.status is not None and link.status.draining:
            link.still_since = 0.0  # not a crash: it exited before it could decline submissions in flight
        logger.warning("link to %s is down: %s", link.replica, reason)
        self._events.on_down(link, reason)
