"""The gateway's links to all instances, kept in step with what membership says.

Links are the truth about life, membership only about addresses: a member that is not listed any more gets no new link,
but its open link serves until it closes; when membership itself is away, nothing changes.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from serving.errors import LinkError
from serving.ids import GatewayId, NodeId, ReplicaId
from serving.link import messages as m
from serving.runtime.instance_link import InstanceLink

logger = logging.getLogger(__name__)

SILENCE_LIMIT_S = 3.0
"""Instances report twice a second; one that is silent this long is frozen or unreachable, whatever its port says."""


class Address(Protocol):
    """What membership tells of an instance."""

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
    """Whom to tell. `on_up` after a link is usable, `on_down` when it is not any more."""

    on_frame: Callable[[InstanceLink, m.Frame], None]
    on_up: Callable[[InstanceLink], None]
    on_down: Callable[[InstanceLink, str], None]


class PoolLinks:
    """All links of one gateway."""

    def __init__(self, gateway: GatewayId, secret: str, events: LinkEvents) -> None:
        self._gateway = gateway
        self._secret = secret
        self._events = events
        self._links: dict[ReplicaId, InstanceLink] = {}
        self._connecting: dict[ReplicaId, asyncio.Task[None]] = {}

    def update(self, members: Iterable[Address]) -> None:
        """Connect to members without a link. Call it with each fresh listing."""
        for member in members:
            link = self._links.get(member.replica)
            if link is not None and link.incarnation != member.incarnation:
                link.close("the replica was restarted")
            elif link is None and member.replica not in self._connecting:
                task = asyncio.create_task(self._connect(member))
                self._connecting[member.replica] = task
                task.add_done_callback(partial(self._connected, member.replica))

    def check_silence(self) -> None:
        """Close links whose instance has said nothing for too long. Call it about once a second."""
        now = asyncio.get_running_loop().time()
        for link in list(self._links.values()):
            if now - link.heard_at > SILENCE_LIMIT_S:
                link.close(f"silent for {now - link.heard_at:.1f} s")

    def link(self, replica: ReplicaId) -> InstanceLink | None:
        """The usable link to a replica, if there is one."""
        link = self._links.get(replica)
        return link if link is not None and link.up else None

    def up(self) -> list[InstanceLink]:
        """All usable links."""
        return [link for link in self._links.values() if link.up]

    def close(self) -> None:
        """Close all links."""
        for task in list(self._connecting.values()):
            task.cancel()
        for link in list(self._links.values()):
            link.close("the gateway stops")

    def _connected(self, replica: ReplicaId, _: "asyncio.Task[None]") -> None:
        self._connecting.pop(replica, None)

    async def _connect(self, member: Address) -> None:
        link = InstanceLink(member.replica, member.incarnation, self._events.on_frame, self._down)
        try:
            await link.connect(member.host, member.port, self._gateway, self._secret)
        except LinkError as error:
            logger.warning("%s; trying again when it is listed next", error)
            return
        self._links[member.replica] = link
        logger.info("linked to %s at %s:%d", member.replica, member.host, member.port)
        self._events.on_up(link)

    def _down(self, link: InstanceLink, reason: str) -> None:
        if self._links.get(link.replica) is link:
            del self._links[link.replica]
        logger.warning("link to %s is down: %s", link.replica, reason)
        self._events.on_down(link, reason)
