"""Frames of a link, as values. Encoded with msgspec (MessagePack), decoded into exactly these types.

Both ends must have proved the secret before.

Gateway to instance: `GatewayHello` first, then `Add`, `Adopt`, `Cancel`, `Release`, `FactsRequest`.
Instance to gateway: `InstanceWelcome` first, then at most one `Frame` per engine step, `Status`, and an
`InstanceFacts` for each request.
"""

from typing import Any

import msgspec

from serving.errors import UNREADABLE, LinkError
from serving.ids import BlockHash, GatewayId, NodeId, ReplicaId
from serving.sockets.proof import Channel
from serving.values.instances import Status
from serving.values.news import News, Prefilled, Value
from serving.values.orders import Add, Adopt, Cancel, Release, Submission
from serving.values.visit_times import StepTime, VisitTimes

PROTOCOL = 9
"""Version of the frames; a link needs the same one on both sides.

Raise it with every change of a frame, or of a struct inside one, that the other side must not misread or ignore.
Structs are sent as arrays: code that does not know a field appended with a default ignores it in silence; any other
change is misread or refused. An upgrade to another number replaces all parties at once (`launch/rollout.py`); with an
unchanged one, old and new code exchange frames until the upgrade is complete.
"""
LINK_CHANNEL = Channel("link", PROTOCOL, frozenset({"gateway"}))
MAX_FRAME_BYTES = 32 << 20
"""Larger frames are refused: a 1 M token prompt takes 5 MiB."""


class GatewayHello(Value, frozen=True, gc=False, tag="Hello"):
    """A gateway identifies itself."""

    gateway: GatewayId


class InstanceWelcome(Value, frozen=True, gc=False, tag="Welcome"):
    """The instance identifies itself. `pool_layout`: of its blocks in the KV-cache pool; empty = it uses none."""

    replica: ReplicaId
    pool: str
    node: NodeId
    layout: str
    block_tokens: int
    kv_blocks: int
    max_model_len: int
    pool_layout: str = ""


class Frame(Value, frozen=True, gc=False):
    """All events of one engine step for one gateway.

    Args:
        visits: of sequences whose first event of a visit is in this frame, or in the next.
        step_time: of the step, or of the last of several; None if no step ended.
    """

    step: int
    news: tuple[News, ...]
    visits: tuple[VisitTimes, ...] = ()
    step_time: StepTime | None = None


class FactsRequest(Value, frozen=True, gc=False):
    """A gateway requests the instance's counters, to export them.

    Args:
        hashes: of a chain of blocks: the facts then also have `kv_layout`, the layout of its blocks in the KV-cache
            pool, and `prefix_blocks`, how many leading blocks of the chain are in its HBM.
    """

    hashes: tuple[BlockHash, ...] = ()


class InstanceFacts(Value, frozen=True, gc=False):
    """Facts and counters at the time of the `FactsRequest`, named as in the instance's announcements.

    They include every sequence whose end was sent before.
    """

    facts: dict[str, Any]


def too_large(message: News | Submission, error: LinkError) -> str:
    """Why a message cannot be sent, with advice for the client."""
    match message:
        case Adopt(ticket=ticket) | Prefilled(ticket=ticket) if not _mostly_answer(message):
            return (
                f"the prompt is too long to be handed over in {len(ticket.blocks)} blocks: send a shorter one, or set "
                f"a larger [engine] block_tokens: {error}"
            )
        case Add() | Adopt():
            return f"the prompt is too long to be sent to an instance, send a shorter one: {error}"
    return f"the response is too large to send, request fewer log-probabilities: {error}"


def _mostly_answer(message: Adopt | Prefilled) -> bool:
    beside = message.first if isinstance(message, Prefilled) else message.spec
    return len(_encoder.encode(beside)) > len(_encoder.encode(message.ticket))


ToInstance = GatewayHello | Add | Adopt | Cancel | Release | FactsRequest
ToGateway = InstanceWelcome | Frame | Status | InstanceFacts

_encoder = msgspec.msgpack.Encoder()
_to_instance: msgspec.msgpack.Decoder[ToInstance] = msgspec.msgpack.Decoder(ToInstance)
_to_gateway: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)


def encode(message: Value) -> bytes:
    """One frame: 4-byte big-endian length, then MessagePack.

    Raises: LinkError if the frame would exceed `MAX_FRAME_BYTES`.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise LinkError(f"frame of {len(body)} bytes exceeds {MAX_FRAME_BYTES}")
    return len(body).to_bytes(4, "big") + body


def decode_to_instance(body: bytes) -> ToInstance:
    """Decode a frame from a gateway.

    Raises: LinkError if it is not one of our frames.
    """
    try:
        return _to_instance.decode(body)
    except UNREADABLE as error:
        raise LinkError(f"unreadable frame from a gateway: {error}") from error


def decode_to_gateway(body: bytes) -> ToGateway:
    """Decode a frame from an instance.

    Raises: LinkError if it is not one of our frames.
    """
    try:
        return _to_gateway.decode(body)
    except UNREADABLE as error:
        raise LinkError(f"unreadable frame from an instance: {error}") from error
