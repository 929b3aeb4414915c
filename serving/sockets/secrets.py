"""Secrets of one system, as its processes store them: the current one, and earlier ones accepted for a while.

All code of a process that listens or connects shares one holder, so that one `replace` rotates the secret for all of
it. Existing connections have proved the secret and stay open.
"""

import hashlib
import hmac
from collections.abc import Sequence

MOST_SECRETS = 4
"""Secrets accepted concurrently; a rotation needs two."""
_ID_BYTES = 8


class ClusterSecrets:
    """Secrets valid at present. Thread-safe: the list is replaced as a whole.

    Args:
        secrets: the current one first.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._keys: tuple[tuple[bytes, bytes], ...] = ()
        self.replace(secrets)

    @classmethod
    def of(cls, secret: "str | ClusterSecrets") -> "ClusterSecrets":
        """The holder itself, or one of a single secret that never changes."""
        return secret if isinstance(secret, ClusterSecrets) else cls((secret,))

    def __repr__(self) -> str:
        return f"ClusterSecrets({len(self._keys)})"

    @property
    def ids(self) -> tuple[bytes, ...]:
        """Names of the secrets, the current one first; they reveal nothing about a randomly drawn secret."""
        return tuple(name for name, _ in self._keys)

    def find(self, ids: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """The first of our secrets that the peer names too, with its name; None if there is none."""
        return next(((name, key) for name, key in self._keys if name in ids), None)

    def replace(self, secrets: Sequence[str]) -> bool:
        """Replace the accepted secrets.

        Args:
            secrets: the current one first; those beyond `MOST_SECRETS` are ignored. Not empty.
        Returns: whether they changed.
        Effects: new connections prove the first.
        """
        keys = tuple((_id_of(secret.encode()), secret.encode()) for secret in secrets[:MOST_SECRETS])
        assert keys, "a system has a secret"
        changed, self._keys = keys != self._keys, keys
        return changed


def _id_of(key: bytes) -> bytes:
    return hmac.digest(key, b"cloudmatrix secret id", hashlib.sha256)[:_ID_BYTES]
