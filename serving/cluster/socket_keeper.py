"""Keeps a process's sockets current: the valid secrets, and the address at which others reach it.

Both may change while it runs: secrets are rotated in Ray's control store, and a cluster of one host, whose first
replicas listen on loopback, may grow. While the control store is unavailable nothing changes.
"""

import asyncio
import logging
from collections.abc import Callable

from serving.cluster.gcs_store import GcsStore
from serving.cluster.identity import read_secrets
from serving.cluster.lookup import ActorLookup
from serving.cluster.nodes import LOOPBACK, link_host
from serving.errors import ConfigError, SilentError
from serving.sockets.secrets import ClusterSecrets

logger = logging.getLogger(__name__)

KEEP_PERIOD_S = 5.0
"""Delay after which a rotated secret is valid everywhere, and a cluster that grew reaches its first replicas."""
LISTING_S = 5.0


class SocketKeeper:
    """Keeper of one process.

    Args:
        secret: valid until the first response of the control store.
        store: of the cluster's secrets.
        host: finds the address to listen on; may block.
    """

    def __init__(self, secret: str, store: GcsStore | None = None, host: Callable[[], str] = link_host) -> None:
        self.secrets = ClusterSecrets((secret,))
        self._store = store or GcsStore()
        self._host = ActorLookup(host)
        self._task: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Read the current secrets. Call it before the first connection.

        Effects: does nothing if the control store does not respond or has none.
        """
        try:
            kept = await asyncio.to_thread(read_secrets, self._store)
        except SilentError as error:
            logger.warning("the system's secrets may be outdated: %s", error)
            return
        if kept and self.secrets.replace(kept):
            logger.info("using the secrets of the control store now; %d are accepted", len(kept))

    def start(self, move: Callable[[str], object], period_s: float = KEEP_PERIOD_S) -> None:
        """Start to follow changes of both.

        Args:
            move: called with the address of this host once another host needs it; raises as `Listener.move`.
        """
        self._task = asyncio.create_task(self._follow(move, period_s))

    def stop(self) -> None:
        """Stop following changes."""
        if self._task is not None:
            self._task.cancel()

    async def _follow(self, move: Callable[[str], object], period_s: float) -> None:
        while True:
            await asyncio.sleep(period_s)
            await self.refresh()
            try:
                host = await self._host.answer(LISTING_S)
                if host != LOOPBACK:  # existing listeners stay as they are
                    move(host)
            except (OSError, ConfigError) as error:
                logger.warning("other hosts cannot reach this process: %s", error)
            except Exception as error:  # Ray raises many kinds of errors when its control store is unavailable
                logger.debug("the hosts of the cluster cannot be read at the moment: %s", error)
