"""The gateway's side of one link: connects, identifies itself, stores the instance's last reported load."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from serving.errors import LinkError, in_words
from serving.ids import GatewayId, ReplicaId
from serving.sockets.secrets import ClusterSecrets
from serving.values.health import hangs
from serving.values.instances import Status
from serving.values.news import Value
from serving.values.orders import Add, Adopt
from serving.wire import messages as m
from serving.wire.connection import Connection, connect_proving

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
        self.heard_at = 0.0
        self.still_since: float | None = None
        """When an instance that is given up for its silence, or for a hanging engine, moved last [s]; 0 = it left."""
        self.used = False
        """Whether the instance was given any sequence over this link."""
        self._on_frame = on_frame
        self._on_status = on_status
        self._on_down = on_down
        self._connection: Connection | None = None
        self._welcomed: asyncio.Future[None] | None = None
        self._asked: deque[asyncio.Future[None]] = deque()

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

    def ask_facts(self) -> asyncio.Future[None]:
        """Request the instance's counters. Returns: done when `facts` has them, or the link is down."""
        answered = asyncio.get_running_loop().create_future()
        if self.send(m.FactsRequest()):
            self._asked.append(answered)  # responses arrive in the order of the requests
        else:
            answered.set_result(None)
        return answered

    def _answered(self) -> None:
        if self._asked:
            self._asked.popleft().set_result(None)

    def close(self, reason: str) -> None:
        """Close the link; `on_down` follows."""
        if self._connection is not None:
            self._connection.close(reason)

    def _receive(self, connection: Connection, body: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        message = m.decode_to_gateway(body)
        match message:
            case m.Frame():
                self._on_frame(self, message)
            case Status():
                self.status = message
                self._on_status(self, message)
            case m.InstanceFacts():
                self.facts = message.facts
                self._answered()
            case m.InstanceWelcome():
                self.welcome = message
                if self._welcomed is not None and not self._welcomed.done():
                    self._welcomed.set_result(None)

    def _closed(self, connection: Connection, reason: str) -> None:
        while self._asked:
            self._answered()
        if self.welcome is None or self._welcomed is None:
            if self._welcomed is not None and not self._welcomed.done():
                self._welcomed.set_exception(LinkError(reason))
                with contextlib.suppress(LinkError):
                    self._welcomed.exception()
            return
        self._on_down(self, reason)
