"""Blocking sockets between our processes, opened and accepted: TLS if it is on, then the proof of the secret."""

import socket
import ssl
import time

from serving.errors import ProofError
from serving.sockets.proof import MAX_PROOF_BYTES, Channel, Prover, Verifier, framed, refusal
from serving.sockets.secrets import ClusterSecrets
from serving.sockets.tls import binding_of, tls_ends


def connected(address: tuple[str, int], timeout_s: float) -> tuple[socket.socket, bytes]:
    """Connect, with TLS if it is on; the secret is still to be proved.

    Returns: the socket, and the binding for the proof.
    Raises: TimeoutError, OSError; ProofError if the TLS handshake fails.
    """
    end = time.monotonic() + timeout_s
    ends = tls_ends()
    sock = socket.create_connection(address, timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # otherwise a proof waits 40 ms for an acknowledgement
    if ends is None:
        return sock, b""
    try:
        sock.settimeout(max(0.001, end - time.monotonic()))
        secure = ends.client.wrap_socket(sock)
    except ssl.SSLError as error:
        sock.close()
        raise ProofError(f"no TLS with {address[0]}:{address[1]}: {_said(error)}") from error
    except BaseException:
        sock.close()
        raise
    return secure, binding_of(secure.getpeercert(binary_form=True))


def open_proved(
    address: tuple[str, int], channel: Channel, role: str, secrets: ClusterSecrets, timeout_s: float
) -> socket.socket:
    """Connect, and prove the secret in both directions.

    Raises: TimeoutError, OSError if there is no connection in time; ProofError if one end refuses the other.
    """
    end = time.monotonic() + timeout_s
    sock, binding = connected(address, timeout_s)
    try:
        prover = Prover(channel, role, secrets, binding)
        sock.settimeout(max(0.001, end - time.monotonic()))
        sock.sendall(framed(prover.opening))
        sock.sendall(framed(prover.answer(read_frame(sock, end))))
    except ssl.SSLError as error:  # TLS 1.3 reports a bad client certificate after the handshake
        sock.close()
        raise ProofError(f"no TLS with {address[0]}:{address[1]}: {_said(error)}") from error
    except BaseException:
        sock.close()
        raise
    return sock


def secured(sock: socket.socket) -> tuple[socket.socket, bytes]:
    """The server's end of an accepted connection, before any data: `handshake` starts TLS.

    Returns: the socket that replaces `sock`, and the binding for the proof.
    """
    ends = tls_ends()
    if ends is None:
        return sock, b""
    return ends.server.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), ends.binding


def accept_proved(sock: socket.socket, verifier: Verifier, deadline: float) -> None:
    """Have the client of an accepted connection prove the secret.

    Raises: TimeoutError, OSError; ProofError if it was refused, after the reason was sent to it.
    Effects: sets the socket's timeout.
    """
    sock.settimeout(max(0.001, deadline - time.monotonic()))
    handshake(sock)
    try:
        while not verifier.proved:
            answer = verifier.on_frame(read_frame(sock, deadline))
            if answer:
                sock.sendall(framed(answer))
    except ProofError as error:
        sock.sendall(framed(refusal(error)))
        raise


def handshake(sock: socket.socket) -> None:
    """Do the TLS handshake on an accepted socket, if TLS is on.

    Raises: TimeoutError, OSError; ProofError if the handshake fails.
    """
    if isinstance(sock, ssl.SSLSocket):
        try:
            sock.do_handshake()
        except ssl.SSLError as error:
            raise ProofError(f"no TLS: {_said(error)}") from error


def read_frame(sock: socket.socket, deadline: float) -> bytes:
    """Body of one frame of the handshake; nothing after it is read.

    Raises: TimeoutError; OSError, also if the peer closes the connection; ProofError if it is too large.
    """
    size = int.from_bytes(_exactly(sock, 4, deadline), "big")
    if size > MAX_PROOF_BYTES:
        raise ProofError("no proof of the secret, but other bytes; use the same release everywhere")
    return _exactly(sock, size, deadline)


def _exactly(sock: socket.socket, nbytes: int, deadline: float) -> bytes:
    got = b""
    while len(got) < nbytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no proof of the secret arrived in time")
        sock.settimeout(left)
        more = sock.recv(nbytes - len(got))
        if not more:
            raise ConnectionResetError("it hung up before the secret was proved; use the same release everywhere")
        got += more
    return got


def _said(error: ssl.SSLError) -> str:
    return str(error.reason or error).replace("_", " ").lower()
