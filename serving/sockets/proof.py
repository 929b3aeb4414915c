"""Proof that both ends of a connection know the secret, which is never sent. Without sockets: frame bodies in, out.

    client ── Opening: channel, version, role, nonce, names of secrets ──► server
           ◄── Challenge: nonce, name of the secret, server's proof ──────
           ── Proof: client's proof ─────────────────────────────────────►      then the channel's own frames

A proof is an HMAC over the proving side, channel, version, role and both nonces, so that a recorded proof is invalid on
another connection, in the other direction, on another channel or under another role. Under TLS it covers the server's
certificate as well, so a man in the middle with another certificate cannot forward proofs.
"""

import hashlib
import hmac
import os
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from serving.errors import UNREADABLE, ProofError
from serving.sockets.secrets import MOST_SECRETS, ClusterSecrets

MAX_PROOF_BYTES = 4 << 10
"""Largest frame of a client that has not proved the secret."""
_NONCE_BYTES = 32
_MAGIC = "cloudmatrix/1"


class _Spoken(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of the handshake's frames."""


class Opening(_Spoken, frozen=True):
    """First message of a connection. `keys`: names of the client's secrets, the current one first."""

    magic: str
    channel: str
    version: int
    role: str
    nonce: bytes
    keys: tuple[bytes, ...]


class Challenge(_Spoken, frozen=True):
    """Server's proof that it knows secret `key`, and its request for the client's."""

    nonce: bytes
    key: bytes
    proof: bytes


class Proof(_Spoken, frozen=True):
    """The client's proof."""

    proof: bytes


class ProofRefusal(_Spoken, frozen=True):
    """The server's refusal of the client, with the reason."""

    reason: str


_decoder: "msgspec.msgpack.Decoder[Opening | Challenge | Proof | ProofRefusal]" = msgspec.msgpack.Decoder(
    Opening | Challenge | Proof | ProofRefusal
)
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Channel:
    """Kind of connection.

    Args:
        name: for messages.
        version: of the frames that follow the proof; both ends must have the same.
        roles: parties that may connect.
    """

    name: str
    version: int
    roles: Collection[str]


class Prover:
    """The client's side of one connection.

    Args:
        binding: digest of the server's certificate; empty without TLS.
    """

    def __init__(self, channel: Channel, role: str, secrets: ClusterSecrets, binding: bytes = b"") -> None:
        self._channel, self._secrets, self._binding = channel, secrets, binding
        self._opening = Opening(_MAGIC, channel.name, channel.version, role, os.urandom(_NONCE_BYTES), secrets.ids)

    @property
    def opening(self) -> bytes:
        """Body of the first frame."""
        return _encode(self._opening)

    def answer(self, body: bytes | memoryview) -> bytes:
        """Body of the frame that responds to the server's first.

        Raises: ProofError if the server refuses, or has not proved the secret.
        """
        challenge = _read(body)
        if isinstance(challenge, ProofRefusal):
            raise ProofError(f"refused: {challenge.reason[:300]}")
        if not isinstance(challenge, Challenge):
            raise ProofError("the server did not prove the secret; use the same release everywhere")
        found = self._secrets.find((challenge.key,))
        if found is None or len(challenge.nonce) != _NONCE_BYTES:
            raise ProofError(f"the {self._channel.name} server uses a secret that is unknown here")
        expected = _proof(found[1], "server", self._opening, challenge.nonce, self._binding)
        if not hmac.compare_digest(expected, challenge.proof):
            raise ProofError(f"the {self._channel.name} server does not know the secret; it is not of this cluster")
        return _encode(Proof(_proof(found[1], "client", self._opening, challenge.nonce, self._binding)))


class Verifier:
    """The server's side of one connection.

    Args:
        binding: digest of the server's own certificate; empty without TLS.
    """

    def __init__(self, channel: Channel, secrets: ClusterSecrets, binding: bytes = b"") -> None:
        self._channel, self._secrets, self._binding = channel, secrets, binding
        self._expected: bytes | None = None
        self.role = ""
        """The proved role; empty before."""
        self._claimed = ""

    @property
    def proved(self) -> bool:
        """Whether the client has proved the secret."""
        return bool(self.role)

    def on_frame(self, body: bytes | memoryview) -> bytes:
        """Body of the response to the client's frame; empty once the client has proved the secret.

        Raises: ProofError if the client must be refused; send it the body of `refusal`.
        """
        message = _read(body)
        if self._expected is None:
            return self._challenge(message)
        if not isinstance(message, Proof) or not hmac.compare_digest(self._expected, message.proof):
            raise ProofError("wrong proof of the secret; take that of this cluster")
        self.role = self._claimed
        return b""

    def _challenge(self, message: "Opening | Challenge | Proof | ProofRefusal") -> bytes:
        channel = self._channel
        if not isinstance(message, Opening) or message.magic != _MAGIC or len(message.nonce) != _NONCE_BYTES:
            raise ProofError("the first frame must open a proof of the secret; use the same release everywhere")
        if message.channel != channel.name:
            raise ProofError(f"this port takes {channel.name} connections, not {message.channel[:40]!r}")
        if message.version != channel.version:
            raise ProofError(
                f"{channel.name} protocol {message.version}, this side speaks {channel.version}; use the same release "
                "everywhere"
            )
        if message.role not in channel.roles:
            raise ProofError(f"role {message.role[:40]!r} has no place on a {channel.name} connection")
        found = self._secrets.find(message.keys[:MOST_SECRETS])
        if found is None:
            raise ProofError("wrong secret; take that of this cluster")
        nonce = os.urandom(_NONCE_BYTES)
        name, key = found
        self._expected = _proof(key, "client", message, nonce, self._binding)
        self._claimed = message.role
        return _encode(Challenge(nonce, name, _proof(key, "server", message, nonce, self._binding)))


def refusal(error: ProofError) -> bytes:
    """Body of the frame that gives a refused client the reason."""
    return _encode(ProofRefusal(str(error)))


def framed(body: bytes) -> bytes:
    """A frame of the handshake: 4-byte big-endian length, body."""
    return len(body).to_bytes(4, "big") + body


def _proof(key: bytes, side: str, opening: Opening, nonce: bytes, binding: bytes) -> bytes:
    said = (_MAGIC, side, opening.channel, opening.version, opening.role, opening.nonce, nonce, binding)
    return hmac.digest(key, _encode(said), hashlib.sha256)


def _read(body: bytes | memoryview) -> "Opening | Challenge | Proof | ProofRefusal":
    try:
        return _decoder.decode(body)
    except UNREADABLE as error:
        raise ProofError("no proof of the secret, but other bytes; use the same release everywhere") from error
