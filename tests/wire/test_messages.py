"""Frames survive the wire as equal values, and no other bytes are accepted."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import LinkError
from serving.ids import BlockHash, GatewayId, NodeId, ReplicaId, SequenceId
from serving.values.instances import Status
from serving.values.news import Adopted, FailKind, Leaving, Lost, News, Prefilled, Refused, Tokens, Value
from serving.values.orders import Add, Adopt, Cancel, Release
from serving.values.sequence import (
    BlockExtent,
    DraftUse,
    FinishReason,
    HandoffTicket,
    PoolUse,
    SamplingParams,
    SequenceSpec,
    TokenLogprobs,
)
from serving.wire import messages as m

TICKET = HandoffTicket(
    ticket_id="t",
    source=ReplicaId("prefill#1"),
    node_id=NodeId("n"),
    segment="segment",
    layout="layout",
    computed_tokens=20,
    blocks=(BlockExtent(4096, 2**64 - 1, 512, BlockHash(bytes(range(16)))), BlockExtent(8192, 1, 512, BlockHash(b""))),
    generation=7,
    drafts=(4, 5),
)
token_ids = st.lists(st.integers(0, 2**31), max_size=20).map(tuple)


def body(message: Value) -> bytes:
    frame = m.encode(message)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4:]


@given(prompt=token_ids, output=token_ids, seed=st.integers(0, 2**64 - 1), temperature=st.floats(0, 2))
def test_orders_round_trip(prompt: tuple[int, ...], output: tuple[int, ...], seed: int, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=seed, logit_bias=((3, -1.5),), stop_token_ids=(1, 2))
    spec = SequenceSpec(SequenceId("r/0"), prompt, sampling, output, salt=b"tenant", namespace="acme")
    for message in (Add(spec), Adopt(spec, TICKET), Cancel(SequenceId("r/0")), Release("t", distrust=True)):
        assert m.decode_to_instance(body(message)) == message


def test_news_round_trip() -> None:
    logprobs = (TokenLogprobs(5, -0.25, ((5, -0.25), (6, -2.0))),)
    news: tuple[News, ...] = (
        Tokens(SequenceId("r/0"), 3, (5,), logprobs, (), 16, FinishReason.STOP),
        Tokens(SequenceId("r/4"), 0, (5,), (), (), 16, pool=PoolUse(12, 4, "timeout")),
        Tokens(SequenceId("r/5"), 7, (5, 6), drafts=DraftUse(3, 1)),
        Prefilled(Tokens(SequenceId("r/1"), 0, (7,)), TICKET),
        Adopted(SequenceId("r/1"), "t"),
        Lost(SequenceId("r/2"), "checksum"),
        Refused(SequenceId("r/3"), FailKind.OVERLOADED, "full", 0.5),
        Leaving(SequenceId("r/6"), handoff=True),
    )
    assert {type(one) for one in news} == set(get_args(News))
    frame = m.Frame(9, news)
    assert m.decode_to_gateway(body(frame)) == frame


@given(st.binary(max_size=64))
def test_garbage_is_a_link_error_never_a_message(garbage: bytes) -> None:
    for decode in (m.decode_to_instance, m.decode_to_gateway):
        try:
            message = decode(garbage)
        except LinkError:
            continue
        assert isinstance(message, Value)


@pytest.mark.parametrize(
    "garbage",
    [b"\x94\xa5Hello\xa1\xff\xa1s\x04", b"\x95\xa5Hello\xa1g\xa1s\x04" + b"\x91" * 1_000_000 + b"\xc0"],
    ids=["not UTF-8", "nested too deep"],
)
def test_garbage_inside_of_a_frame_is_a_link_error_too(garbage: bytes) -> None:
    """Both exceptions bypassed the handler of link errors: a stranger had a traceback logged for each frame."""
    with pytest.raises(LinkError):
        m.decode_to_instance(garbage)
    with pytest.raises(LinkError):
        m.decode_to_gateway(garbage.replace(b"Hello", b"Frame"))


def test_a_frame_of_the_other_direction_is_refused() -> None:
    with pytest.raises(LinkError, match="from a gateway"):
        m.decode_to_instance(body(Status(0, 0, 0, 0, False, 0.0, 0.0)))
    with pytest.raises(LinkError, match="from an instance"):
        m.decode_to_gateway(body(m.GatewayHello(GatewayId("g"))))


def test_an_oversized_frame_is_refused_before_it_is_sent() -> None:
    spec = SequenceSpec(SequenceId("r/0"), (1,), SamplingParams(), salt=bytes(m.MAX_FRAME_BYTES))
    with pytest.raises(LinkError, match="exceeds"):
        m.encode(Add(spec))


def test_messages_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Cancel(SequenceId("r")).sequence_id = SequenceId("q")  # type: ignore[misc]
    assert issubclass(Value, msgspec.Struct)
