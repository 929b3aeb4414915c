"""Expert slots of ranks on other nodes: one connection, to the port of the peer's carriers, for each record read.

    reader                              owner of the slot
    proof of the secret (TLS if on) ──►
    (layer, slot)                   ──►
                                    ◄── nothing, or why the slot cannot be read
                                    ◄── the slot's bytes

TCP's window bounds what is under way, so an owner sends no faster than its reader's pace. A record carries checksums,
which the reader verifies as for a slot of its own node: one that was overwritten meanwhile, or damaged, is refused.
"""

import contextlib
import socket
import time
from collections.abc import Callable

import msgspec

from serving.errors import ExpertError, ProofError, ServingError
from serving.model.slots.expert_record import Pace
from serving.model.slots.slot_region import SlotLayout
from serving.sockets.bulk import receive_views, send_views
from serving.sockets.opening import read_frame
from serving.sockets.proof import MAX_PROOF_BYTES, framed

OwnSlots = Callable[[int, int], memoryview]

READER = "reader"
"""Role of a connection that reads a record; see `carrier.CARRIER_CHANNEL`."""
WINDOW_BYTES = 1 << 20
"""Socket buffer of either end."""
PIECE_BYTES = 256 << 10
STALL_S = 5.0
_SEND_S = 60.0
"""Longest wait of the owner for room for a piece [s]: readers are slow on purpose, by `[experts] move_mib_per_s`."""


class FarSlots:
    """`PeerRecords` of a rank on another node.

    Args:
        layout: of the peer's slots.
        open_: opens a connection to the peer as `READER`, within a time [s].
        stall_s: longest wait for the connection, the response, and each piece [s].
    """

    paced = True

    def __init__(self, layout: SlotLayout, open_: Callable[[float], socket.socket], stall_s: float = STALL_S) -> None:
        self._layout, self._open, self._stall_s = layout, open_, stall_s

    def record(self, layer: int, slot: int, pace: Pace) -> memoryview:
        """See `PeerRecords.record`; a copy, received at the pace."""
        _, nbytes = self._layout.place(self._layout.number(layer, slot))
        pace(0)  # a copy that is given up need not wait for a host that is lost
        try:
            with contextlib.closing(self._open(self._stall_s)) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW_BYTES)
                sock.sendall(framed(msgspec.msgpack.encode((layer, slot))))
                if refused := read_frame(sock, time.monotonic() + self._stall_s):
                    raise ExpertError(refused.decode(errors="replace"))
                memory = memoryview(bytearray(nbytes))
                for at in range(0, nbytes, PIECE_BYTES):
                    piece = memory[at : at + PIECE_BYTES]
                    receive_views(sock, [piece], time.monotonic() + self._stall_s)
                    pace(len(piece))
                return memory
        except (OSError, ProofError) as error:
            raise ExpertError(f"layer {layer}, slot {slot}: the peer's slots cannot be read ({error})") from error


def send_record(sock: socket.socket, own: OwnSlots | None, deadline: float) -> None:
    """Serve one connection of a reader.

    Args:
        own: returns the memory of a slot of this rank, by layer and slot; None = it has none to offer.
        deadline: for the request, on `time.monotonic`'s scale.
    Raises: OSError; ServingError, msgspec.DecodeError if the request cannot be read.
    """
    layer, slot = msgspec.msgpack.decode(read_frame(sock, deadline), type=tuple[int, int])
    try:
        if own is None:
            raise ExpertError("this rank has no slots of its own")
        record = own(layer, slot)
    except ServingError as error:
        sock.sendall(framed(str(error).encode()[:MAX_PROOF_BYTES]))
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WINDOW_BYTES)
    sock.sendall(framed(b""))
    for at in range(0, len(record), PIECE_BYTES):
        send_views(sock, [record[at : at + PIECE_BYTES]], time.monotonic() + _SEND_S)
