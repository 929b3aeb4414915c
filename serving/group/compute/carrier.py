"""Connections of a rank to ranks of other hosts, and local mirrors of the windows of these ranks.

A window is shared memory of one host. For a peer of another host a rank has a *mirror*, a window in its own memory, and
a native carrier (`hardware/ub/native/carrier.h`) that keeps it in step with the peer over TCP. Python opens the
connection, with TLS if it is on, and proves the secret; the higher rank connects to the lower one. A peer without a
connection in time, or whose connection ends, counts as lost; ending the carrier fences it.

Every rank carries for itself. A process per host in between would send a row only once for several expert ranks of that
host, but its end would be the loss of the whole host; results are most of the bytes, and cannot be shared.
"""

import ctypes
import logging
import mmap
import socket
import threading
import time
from dataclasses import replace

import msgspec

from hardware.ub.exchange_layout import MOST_RANKS, WindowShape
from serving.config.cluster import ANY_PORT, PortRange
from serving.errors import ProofError, ServingError
from serving.group.compute.far_slots import READER, FarSlots, OwnSlots, send_record
from serving.model.native.layout import NativeRole
from serving.model.native.rank_group import address_of, format_window, group_library, window_bytes
from serving.model.slots.slot_region import PeerSlots
from serving.sockets.acceptor import Acceptor
from serving.sockets.opening import accept_proved, open_proved, read_frame, secured
from serving.sockets.proof import Channel, Verifier, framed
from serving.sockets.relay import plain_end
from serving.sockets.secrets import ClusterSecrets
from serving.sockets.tls import tls_ends
from serving.values.group import RankOffer

logger = logging.getLogger(__name__)

CARRIER_CHANNEL = Channel("experts", 2, frozenset({"rank", READER}))
BEAT_S = 0.25
"""Longest time between two frames [s]."""
SILENCE_S = 1.0
"""Time without a frame after which a peer is lost [s]."""
_STOP_S = 2.0
_REASON_BYTES = 200


class CarrierGreeting(msgspec.Struct, frozen=True, array_like=True):
    """First frame after the proof: the connecting rank and the one it looks for, as (rank, node, process), and the
    sizes of its windows but for their rows."""

    me: tuple[int, str, int]
    you: tuple[int, str, int]
    sizes: tuple[int, ...]


def _process_of(offer: RankOffer) -> tuple[int, str, int]:
    return offer.rank, offer.node, offer.pid


class Mirror:
    """A peer's window in this process's memory, and the carrier to the peer.

    Args:
        own: the rank's own window, of this shape.
        offer: the peer's.
    Raises: ModelError, SpecError if the sizes cannot be.
    """

    def __init__(
        self,
        own: memoryview,
        shape: WindowShape,
        offer: RankOffer,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.offer = offer
        self._silence_s = silence_s
        self._library = group_library()
        shape, role = replace(shape, max_rows=offer.rows), NativeRole[offer.role.name]
        self.memory = memoryview(mmap.mmap(-1, window_bytes(shape)))
        """Valid as long as it is referenced, also after `end`."""
        format_window(self._library, self.memory, shape, offer.rank, (1 << shape.ranks) - 1, role)
        self._lock = threading.Lock()
        self._carrier: ctypes.c_void_p | None = ctypes.c_void_p()
        self._begun = threading.Event()
        self._logged = False
        self._library.check(
            self._library.functions.cm_carrier_open(
                address_of(own), address_of(self.memory), int(BEAT_S * 1e9), int(silence_s * 1e9), self._carrier
            )
        )

    def start(self, sock: socket.socket) -> bool:
        """Hand over a proved connection. Returns: False if the peer is lost already, or has a connection."""
        with self._lock:
            if self._carrier is None or self._begun.is_set():
                return False
            plain = plain_end(sock, self._silence_s)
            self._begun.set()
            plain.settimeout(None)
            self._library.check(self._library.functions.cm_carrier_start(self._carrier, plain.detach()))
            return True

    def lose(self, why: str) -> None:
        """Count the peer as lost, unless it has a connection."""
        with self._lock:
            if self._carrier is not None and not self._begun.is_set():
                self._begun.set()
                self._library.functions.cm_carrier_lose(self._carrier, why.encode()[:_REASON_BYTES])

    def connected(self, timeout_s: float) -> bool:
        """Wait for the end of `start` or `lose`. Returns: False if there was none in time."""
        return self._begun.wait(timeout_s)

    @property
    def lost(self) -> str:
        """Why the peer is lost; empty = it is not. Logs it, once."""
        why = ctypes.create_string_buffer(_REASON_BYTES)
        with self._lock:
            if self._carrier is None:
                return "this rank has ended the connection"
            self._library.functions.cm_carrier_lost(self._carrier, why, len(why))
        text = why.value.decode(errors="replace")  # it may be cut off
        if text and not self._logged:
            self._logged = True
            logger.warning("rank %d, on node %s, is lost: %s", self.offer.rank, self.offer.node, text)
        return text

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to the peer so far."""
        with self._lock:
            functions = self._library.functions
            return 0 if self._carrier is None else int(functions.cm_carrier_sent_bytes(self._carrier))

    def end(self) -> None:
        """End the connection: nothing of the peer is stored any more."""
        with self._lock:
            if self._carrier is not None:
                self._library.functions.cm_carrier_close(self._carrier)
            self._carrier = None
            self._begun.set()


class Carriers:
    """Connections of one rank. Methods may be called from any thread; `close` once, when no step is running.

    Args:
        own: the rank's window, of this shape.
        me: this rank, its node and process.
        connect_s: time for a peer's connection [s].
        silence_s: time without a frame after which a peer is lost [s].
    """

    def __init__(
        self,
        own: memoryview,
        shape: WindowShape,
        me: tuple[int, str, int],
        secrets: ClusterSecrets,
        connect_s: float,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._silence_s = silence_s
        self._own, self._shape, self._secrets, self._connect_s = own, shape, secrets, connect_s
        self._me, self._rank = me, me[0]
        self._sizes = (shape.ranks, shape.top_k, shape.row_bytes, shape.result_bytes)
        self._acceptor = Acceptor("experts", MOST_RANKS, self._serve)
        self._changed = threading.Condition()
        self._mirrors: dict[int, Mirror] = {}
        self._closed = False
        self.slots: OwnSlots | None = None
        """The rank's own slots, for peers of other nodes, as for `send_record`."""

    def start(self, host: str, ports: PortRange = ANY_PORT) -> tuple[str, int]:
        """Listen on `host`.

        Returns: the address bound.
        Raises: ConfigError if the TLS files cannot be used, or the range has no free port; OSError if the host cannot
            be bound.
        """
        tls_ends()
        return self._acceptor.start(host, ports)

    def meet(self, offer: RankOffer) -> memoryview:
        """Create the mirror of a peer, replacing that of the rank's former process, and connect in the background.

        Returns: its memory, to be kept as long as a step may access it, also after `part`.
        """
        self.part(offer.rank)
        mirror = Mirror(self._own, self._shape, offer, self._silence_s)
        with self._changed:
            self._mirrors[offer.rank] = mirror
            self._changed.notify_all()
        name = f"experts-connect-{offer.rank}"
        threading.Thread(target=self._establish, args=(mirror,), name=name, daemon=True).start()
        return mirror.memory

    def slots_of(self, offer: RankOffer) -> FarSlots:
        """Slots of a peer on another node."""
        layout, address = PeerSlots.of(offer.slots).layout, offer.carrier
        return FarSlots(layout, lambda limit_s: open_proved(address, CARRIER_CHANNEL, READER, self._secrets, limit_s))

    def part(self, rank: int) -> None:
        """Close the connection to a former member; call it before the first epoch without that rank starts."""
        with self._changed:
            mirror = self._mirrors.pop(rank, None)
        if mirror is not None:
            mirror.end()

    def lost(self) -> dict[int, str]:
        """Ranks whose connection has ended or never began, in order, and why."""
        with self._changed:
            mirrors = sorted(self._mirrors.items())
        return {rank: mirror.lost for rank, mirror in mirrors if mirror.lost}

    @property
    def ranks(self) -> list[int]:
        """Ranks with a mirror in this process."""
        with self._changed:
            return sorted(self._mirrors)

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to all present peers so far."""
        with self._changed:
            mirrors = list(self._mirrors.values())
        return sum(mirror.sent_bytes for mirror in mirrors)

    def close(self) -> None:
        """End all connections."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for rank in self.ranks:
            self.part(rank)
        self._acceptor.stop(_STOP_S)

    # ---- opening

    def _establish(self, mirror: Mirror) -> None:
        offer = mirror.offer
        if offer.rank < self._rank:
            try:
                sock = self._connect(offer)
                if not mirror.start(sock):  # closed by this rank in the meantime
                    sock.close()
            except (OSError, ServingError) as error:
                mirror.lose(f"no connection to {offer.carrier}: {error}")
        elif not mirror.connected(self._connect_s):
            mirror.lose(f"it has not connected within {self._connect_s:g} s")

    def _connect(self, offer: RankOffer) -> socket.socket:
        """Raises: OSError, ProofError."""
        deadline = time.monotonic() + self._connect_s
        sock = open_proved(offer.carrier, CARRIER_CHANNEL, "rank", self._secrets, self._connect_s)
        try:
            greeting = CarrierGreeting(self._me, _process_of(offer), self._sizes)
            sock.sendall(framed(msgspec.msgpack.encode(greeting)))
            if read_frame(sock, deadline) != b"":
                raise ProofError("the peer runs another release")
        except BaseException:
            sock.close()
            raise
        return sock

    def _serve(self, raw: socket.socket) -> None:
        """Hand an accepted connection over to the mirror it is for."""
        deadline = time.monotonic() + self._connect_s
        sock = raw
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock, binding = secured(raw)
            with self._acceptor.watched(raw, sock):
                accept_proved(sock, verifier := Verifier(CARRIER_CHANNEL, self._secrets, binding), deadline)
                if not self._acceptor.accepted(raw):
                    raise ProofError(f"there are {MOST_RANKS} of them already")
                if verifier.role == READER:
                    send_record(sock, self.slots, deadline)
                    sock.close()
                    return
                greeting = msgspec.msgpack.decode(read_frame(sock, deadline), type=CarrierGreeting)
                mirror = self._mirror_for(greeting, deadline)
                sock.sendall(framed(b""))
            if not mirror.start(sock):
                raise ProofError(f"rank {greeting.me[0]} is lost, or has a connection")
        except (ServingError, msgspec.DecodeError) as error:
            logger.warning("rank %d refuses a connection of a rank: %s", self._rank, error)
            sock.close()
        except OSError as error:
            logger.debug("a connecting rank disconnected: %s", error)
            sock.close()

    def _mirror_for(self, greeting: CarrierGreeting, deadline: float) -> Mirror:
        """The mirror of a connecting rank, which this one may still have to meet.

        Raises: ProofError if this is not who it expects, or that rank is not expected here in time.
        """
        rank = greeting.me[0]
        if greeting.you != self._me or greeting.sizes != self._sizes:
            raise ProofError(f"rank {rank} looks for another process, or has windows of other sizes")

        def there() -> bool:
            mirror = self._mirrors.get(rank)
            return self._closed or (mirror is not None and _process_of(mirror.offer) == greeting.me)

        with self._changed:
            if not self._changed.wait_for(there, max(0.0, deadline - time.monotonic())) or self._closed:
                raise ProofError(f"rank {rank}, process {greeting.me[2]} of node {greeting.me[1]}, is no member here")
            return self._mirrors[rank]
