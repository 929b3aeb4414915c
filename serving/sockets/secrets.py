"""Secrets of one system, as its processes hold them: the current one, and older ones that are accepted for a while.

A holder is shared by everything in a process that listens or connects, so that one `replace` rotates the secret for all
of it. Connections that exist have proved theirs and stay.
"""

import hashlib
import hmac
from collections.abc import Sequence

MOST_SECRETS = 4
"""Accepted at once; a rotation needs two."""
_ID_BYTES = 8


class ClusterSecrets:
    """Secrets that count now. Safe for threads: the list is replaced whole.

    Args:
        secrets: the current one first.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._keys: tuple[tuple[bytes, bytes], ...] = ()
        self.replace(secrets)

    @classmethod
    def of(cls, secret: "str | ClusterSecrets") -> "ClusterSecrets":
        """The holder, also of a single secret that never changes."""
        return secret if isinstance(secret, ClusterSecrets) else cls((secret,))

    def __repr__(self) -> str:
        return f"ClusterSecrets({len(self._keys)})"

    @property
    def ids(self) -> tuple[bytes, ...]:
        """Names of the secrets, the current one first; they tell nothing about a secret that was drawn at random."""
        return tuple(name for name, _ in self._keys)

    def find(self, ids: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """The first of our secrets that the other side names too, with its name; None if there is none."""
        return next(((name, key) for name, key in self._keys if name in ids), None)

    def replace(self, secrets: Sequence[str]) -> bool:
        """Accept these from now on.

        Args:
            secrets: the current one first; those beyond `MOST_SECRETS` are ignored. Not empty.
        Returns: whether anything changed.
        Effects: new connections prove the first.
        """
        keys = tuple((_id_of(secret.encode()), secret.encode()) for secret in secrets[:MOST_SECRETS])
        assert keys, "a system has a secret"
        changed, self._keys = keys != self._keys, keys
        return changed


def _id_of(key: bytes) -> bytes:
    return hmac.digest(key, b"cloudmatrix secret id", hashlib.sha256)[:_ID_BYTES]
