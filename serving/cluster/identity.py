"""Identity of one system on a Ray cluster: its session, its secrets, its pool's salt.

It is generated once and stored in Ray's control store, so that a second deployment, an application rebuilt after the
head's loss, or a builder on another host finds the same. None of it is in a configuration file.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from serving.cluster.gcs_store import ActorLookup, GcsStore
from serving.cluster.nodes import LOOPBACK, link_host
from serving.errors import ConfigError, SilentError
from serving.sockets.secrets import ClusterSecrets

SESSION_KEY = "identity/session"
SECRETS_KEY = "identity/secrets"
SALT_KEY = "identity/pool-salt"


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """Identity of one system.

    Args:
        session: name of its folders and its segments of shared memory on every host.
        secrets: by which its processes prove that they belong to the system: the current one first, then earlier ones
            that are still accepted.
        pool_salt: namespaces' salts are derived from it.
    """

    session: str
    secrets: tuple[str, ...] = field(repr=False)
    pool_salt: bytes = field(repr=False)


def found_identity(store: GcsStore, session: str | None = None, salt: bytes | None = None) -> SystemIdentity:
    """The identity of the system on this cluster; missing parts are generated. Safe for concurrent callers.

    Args:
        session: for a system that has none yet; by default a random name.
        salt: of the configuration, which overrides the stored one; None if it has none.
    Raises: SilentError if the control store does not respond.
    """
    kept_session = store.put_if_absent(SESSION_KEY, (session or secrets.token_hex(3)).encode())
    store.put_if_absent(SECRETS_KEY, msgspec.json.encode((secrets.token_hex(32),)))
    if salt is None:
        salt = store.put_if_absent(SALT_KEY, secrets.token_bytes(32))
    else:
        store.put(SALT_KEY, salt)
    return SystemIdentity(kept_session.decode(), read_secrets(store), salt)


def read_secrets(store: GcsStore) -> tuple[str, ...]:
    """The system's secrets, the current one first; none before the first start. Raises: SilentError."""
    kept = store.get(SECRETS_KEY)
    return msgspec.json.decode(kept, type=tuple[str, ...]) if kept is not None else ()


def write_secrets(store: GcsStore, kept: tuple[str, ...]) -> None:
    """Replace the system's secrets; readers use the first and accept all. Raises: SilentError."""
    store.put(SECRETS_KEY, msgspec.json.encode(kept))


def read_session(store: GcsStore) -> str | None:
    """Name of the system on this cluster, or None if there is none. Raises: SilentError."""
    kept = store.get(SESSION_KEY)
    return kept.decode() if kept is not None else None


# Keeps a process's sockets current: the valid secrets, and the address at which others reach it.
#
# Both may change while it runs: secrets are rotated in Ray's control store, and a cluster of one host, whose first
# replicas listen on loopback, may grow. While the control store is unavailable nothing changes.

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
