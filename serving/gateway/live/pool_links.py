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
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from serving.errors import LinkError
from serving.gateway.live.instance_link import InstanceLink
from serving.ids import GatewayId, NodeId, ReplicaId
from serving.sockets.secrets import ClusterSecrets
from serving.values.health import Silence
from serving.values.instances import CRASHED_AGE_S, Status
from serving.wire import messages as m

logger = logging.getLogger(__name__)

SILENCE_LIMIT_S = 2.5
"""Default that follows from `[health]`."""

FACTS_S = 0.2
"""How long a page of metrics waits for the instances' counters; without a response the previous ones are shown."""
CHECK_PERIOD_S = 0.1
"""Polling period of silence, and so the most delay in detecting it."""


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
        self._silence = Silence(silence_s, 0.0)

    def update(self, members: Iterable[Address]) -> None:
        """Connect to members without a link. Call it with each fresh listing."""
        if self._closed:
            return
        for member in members:
            link = self._links.get(member.replica)
            if link is not None and link.incarnation != member.incarnation:
                link.close("the replica was restarted")
            elif link is None and member.replica not in self._connecting:
                task = asyncio.create_task(self._connect(member))
                self._connecting[member.replica] = task
                task.add_done_callback(partial(self._connected, member.replica))

    def check_silence(self) -> None:
        """Close links whose instance has been silent for too long, or reports that its engine hangs.

        Call this every `CHECK_PERIOD_S`.
        """
        now = asyncio.get_running_loop().time()
        self._silence.look(now)
        for link in list(self._links.values()):
            if self._silence.too_long(link.heard_at, now):
                link.still_since = link.heard_at
                link.close(f"silent for {now - link.heard_at:.1f} s")
            elif link.hangs and link.used and link.status is not None:
                age_s = link.status.progress_age_s
                crashed = age_s >= CRASHED_AGE_S
                # It is unknown when a crashed engine last made progress: any submission sent to it may be the cause.
                link.still_since = None if crashed else now - age_s
                link.close("its engine has " + ("crashed" if crashed else f"been at one step for {age_s:.1f} s"))

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
            logger.warning("%s; retrying when it is next listed", error)
            return
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
