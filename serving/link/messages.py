"""Frames of a link, as values. Encoded with msgspec (MessagePack), decoded into exactly these types.

Gateway to instance: `Hello` first, then `Add`, `Adopt`, `Cancel`, `Release`.
Instance to gateway: `Welcome` first, then one `Frame` per engine step at most, and `Status`.
"""

import msgspec

from serving.errors import UNREADABLE, LinkError
from serving.ids import GatewayId, NodeId, ReplicaId, SequenceId
from serving.policy.journal_commands import FailKind
from serving.policy.request import DraftUse, FinishReason, HandoffTicket, PoolUse, SequenceSpec, TokenLogprobs

PROTOCOL = 6
CRASHED_AGE_S = 1e9
"""Tells a crashed engine in `Status.progress_age_s`, where infinity may not stand."""
MAX_FRAME_BYTES = 32 << 20
"""Larger frames are refused: a 1 M token prompt takes 5 MiB."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all frames; its subclasses are the tagged union."""


class Hello(Message, frozen=True):
    """A gateway introduces itself. `secret` is the cluster's shared secret."""

    gateway: GatewayId
    secret: str
    protocol: int = PROTOCOL


class Add(Message, frozen=True):
    """Compute this sequence's prompt here (and, outside the prefill role, go on decoding)."""

    spec: SequenceSpec


class Adopt(Message, frozen=True):
    """Pull the KV of `ticket`, then decode. Sent to its source: decode it there, whatever the role."""

    spec: SequenceSpec
    ticket: HandoffTicket


class Cancel(Message, frozen=True):
    """Forget this sequence, whatever its state. Unknown ids are ignored."""

    sequence_id: SequenceId


class Release(Message, frozen=True):
    """The blocks of a ticket were pulled (or never will be): free them."""

    ticket_id: str
    distrust: bool = False
    """They did not arrive as they were registered: reuse them for nobody."""


class Welcome(Message, frozen=True):
    """The instance introduces itself."""

    replica: ReplicaId
    pool: str
    node: NodeId
    layout: str
    block_tokens: int
    kv_blocks: int
    max_model_len: int


class Tokens(Message, frozen=True):
    """News of one sequence within a `Frame`; the fields of `engine.events.TokensEvent`."""

    sequence_id: SequenceId
    position: int
    """Output tokens before these ones, resumed output included."""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int | None = None
    finish: FinishReason | None = None
    pool: PoolUse | None = None
    drafts: DraftUse | None = None
    waited_s: float | None = None
    """In the gateway's time, unlike the event's."""
    preempted: int = 0


class Prefilled(Message, frozen=True):
    """The blocks are registered: the sequence waits here to be adopted elsewhere.

    Its prompt is computed; or it was decoded here and the instance drains: then `first` has no tokens.
    """

    first: Tokens
    ticket: HandoffTicket


class Adopted(Message, frozen=True):
    """The KV of `ticket_id` has arrived in this instance; its source may free it."""

    sequence_id: SequenceId
    ticket_id: str


class Lost(Message, frozen=True):
    """This instance gives the sequence up: it failed on it, or its KV did not arrive."""

    sequence_id: SequenceId
    reason: str


class Refused(Message, frozen=True):
    """The instance would not take the sequence: its queues are full, or it drains."""

    sequence_id: SequenceId
    kind: FailKind
    reason: str
    retry_after_s: float = 0.0


class Leaving(Message, frozen=True):
    """The instance drains and had rather be rid of this sequence, but goes on with it until it is cancelled.

    Args:
        handoff: it is one that was not pulled yet, else a prompt that is not computed yet.
    """

    sequence_id: SequenceId
    handoff: bool


News = Tokens | Prefilled | Adopted | Lost | Refused | Leaving


class Frame(Message, frozen=True):
    """Everything one engine step has to say to one gateway."""

    step: int
    news: tuple[News, ...]


class Status(Message, frozen=True):
    """Load of an instance, sent every `[health] link_period_s` and when draining begins; its absence tells a freeze."""

    queued_tokens: int
    waiting: int
    running: int
    """Those that have their blocks: computing, or being pulled or fetched."""
    blocks_free: int
    draining: bool
    progress_age_s: float
    """Real time that the engine has had work without making a step; 0 when idle, `CRASHED_AGE_S` after a crash."""
    tokens_per_s: float
    """Recent tokens computed per second of step time."""
    step_limit_s: float = 0.0
    """What `progress_age_s` may be at most: beyond it the engine hangs; 0 = nobody knows."""
    lost_paths: tuple[ReplicaId, ...] = ()
    """Instances from which no KV blocks arrive here."""
    slow_paths: tuple[ReplicaId, ...] = ()
    """Instances from which KV blocks arrive late here."""
    gateways: int = 1
    """That are linked to this instance: each of them knows only what it sent there itself."""
    pulling: int = 0
    fetching: int = 0
    """Of those in `running`, the ones whose blocks are on their way: from another instance, from the KV-cache pool."""
    blocks_cached: int = 0
    """Of those that are free, the ones that still hold a prefix."""


Submission = Add | Adopt


def too_large(message: News | Submission, error: LinkError) -> str:
    """Why a message cannot be sent, for whoever asked for what is in it, and what they can do about that."""
    match message:
        case Adopt(ticket=ticket) | Prefilled(ticket=ticket) if not _mostly_answer(message):
            return (
                f"the prompt is too long to be handed over in {len(ticket.blocks)} blocks: send a shorter one, or set "
                f"a larger [engine] block_tokens: {error}"
            )
        case Add() | Adopt():
            return f"the prompt is too long to be sent to an instance, send a shorter one: {error}"
    return f"the answer is too large to be sent, ask for fewer log-probabilities: {error}"


def _mostly_answer(message: Adopt | Prefilled) -> bool:
    beside = message.first if isinstance(message, Prefilled) else message.spec
    return len(_encoder.encode(beside)) > len(_encoder.encode(message.ticket))


ToInstance = Hello | Add | Adopt | Cancel | Release
ToGateway = Welcome | Frame | Status

_encoder = msgspec.msgpack.Encoder()
_to_instance: msgspec.msgpack.Decoder[ToInstance] = msgspec.msgpack.Decoder(ToInstance)
_to_gateway: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)


def encode(message: Message) -> bytes:
    """One frame: 4-byte big-endian length, then MessagePack.

    Raises: LinkError if the frame would exceed `MAX_FRAME_BYTES`.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise LinkError(f"frame of {len(body)} bytes exceeds {MAX_FRAME_BYTES}")
    return len(body).to_bytes(4, "big") + body


def decode_to_instance(body: bytes) -> ToInstance:
    """Read what a gateway sent.

    Raises: LinkError if it is not one of our frames.
    """
    try:
        return _to_instance.decode(body)
    except UNREADABLE as error:
        raise LinkError(f"unreadable frame from a gateway: {error}") from error


def decode_to_gateway(body: bytes) -> ToGateway:
    """Read what an instance sent.

    Raises: LinkError if it is not one of our frames.
    """
    try:
        return _to_gateway.decode(body)
    except UNREADABLE as error:
        raise LinkError(f"unreadable frame from an instance: {error}") from error
