"""Identity of one system on a Ray cluster: its session, its secrets, its pool's salt.

It is generated once and stored in Ray's control store, so that a second deployment, an application rebuilt after the
head's loss, or a builder on another host finds the same. None of it is in a configuration file.
"""

import secrets
from dataclasses import dataclass, field

import msgspec

from serving.cluster.gcs_store import GcsStore

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
