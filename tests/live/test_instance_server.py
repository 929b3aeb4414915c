"""Responses of an instance to a gateway, frame by frame, and its refusals."""

import asyncio
import dataclasses
import math
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio
from msgspec.structs import replace

from serving.errors import OverloadedError, ProofError
from serving.ids import BlockHash, GatewayId, NodeId, ReplicaId, SequenceId
from serving.instance.core.events import HandoffClosed, HandoffEnd
from serving.instance.live import instance_server
from serving.instance.live.instance import Instance
from serving.instance.live.instance_server import MOST_STRANGERS, InstanceServer
from serving.values.instances import Status
from serving.values.news import Adopted, FailKind, Lost, News, Prefilled, Refused, Tokens, refusal
from serving.values.orders import Add, Adopt, Cancel, Release
from serving.values.sequence import (
    BlockExtent,
    FinishReason,
    HandoffTicket,
    SamplingParams,
    SequenceSpec,
    TokenLogprobs,
)
from serving.values.step_plan import StepPlan
from serving.wire import messages as m
from tests.instance.bench import Bench
from tests.live import by_hand
from tests.live.harness import SECRET, Pools, executor, small_config, until
from tests.live.wire import RawGateway
from tests.live.workload import GREEDY, Reference

pytestmark = pytest.mark.asyncio

PROMPT = tuple(range(40))


def spec(name: str, sampling: SamplingParams = GREEDY, prompt: tuple[int, ...] = PROMPT) -> SequenceSpec:
    return SequenceSpec(SequenceId(name), prompt, sampling, time_left_s=60.0)


@pytest_asyncio.fixture
async def pools(checkpoint: Path, shm: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pools]:
    """One prefill and one decode instance; the tests talk to them directly."""
    monkeypatch.setattr(instance_server, "HELLO_DEADLINE_S", 60.0)
    small = {"max_waiting": 1}
    async with Pools(small_config(checkpoint, prefill=small, decode=small), shm) as assembled:
        await assembled.start("prefill", "decode")
        yield assembled
        await assembled.audit()


async def connect(instance: Instance, name: str = "raw") -> RawGateway:
    return await RawGateway.connect(instance.server.address, name)


@pytest.mark.parametrize(
    "first",
    [
        m.encode(m.GatewayHello(GatewayId("g"))),
        m.encode(Cancel(SequenceId("before the hello"))),
        (5).to_bytes(4, "big") + b"\x00junk",
        b"GET /v1/models HTTP/1.1\r\n\r\n",
        (2**31).to_bytes(4, "big"),
        m.MAX_FRAME_BYTES.to_bytes(4, "big"),
    ],
    ids=[
        "a hello without a proof",
        "no hello",
        "garbage",
        "a browser",
        "a huge frame",
        "a frame as large as a gateway's",
    ],
)
async def test_strangers_are_refused(pools: Pools, first: bytes, caplog: pytest.LogCaptureFixture) -> None:
    stranger = await RawGateway.connect(pools.instances[0].server.address)
    stranger.writer.write(first)
    begun = time.monotonic()
    assert await stranger.ended()
    assert time.monotonic() - begun < instance_server.HELLO_DEADLINE_S, "not only when its time was over"
    assert "Fatal error" not in caplog.text, "a stranger is no bug of ours"
    await stranger.close()


@pytest.mark.parametrize("secret", ["a guess", "", "é"])
async def test_another_secret_is_refused(pools: Pools, secret: str) -> None:
    stranger = await RawGateway.connect(pools.instances[0].server.address)
    with pytest.raises(ProofError, match="refused: wrong secret; take that of this cluster"):
        await stranger.prove(secret)
    assert await stranger.ended()
    await stranger.close()


async def test_another_release_is_refused(pools: Pools) -> None:
    stranger = await RawGateway.connect(pools.instances[0].server.address)
    with pytest.raises(ProofError, match=f"protocol 99, this side speaks {m.PROTOCOL}; use the same release"):
        await stranger.prove(channel=dataclasses.replace(m.LINK_CHANNEL, version=99))
    await stranger.close()


async def test_silent_ones_do_not_keep_gateways_out(pools: Pools) -> None:
    silent = [await RawGateway.connect(pools.instances[0].server.address) for _ in range(2 * MOST_STRANGERS)]
    begun = time.monotonic()
    assert await silent[0].closed()
    gateway = await connect(pools.instances[0])
    assert time.monotonic() - begun < instance_server.HELLO_DEADLINE_S, "not only when their time was over"
    for one in [gateway, *silent]:
        await one.close()


async def test_a_second_hello_ends_the_link(pools: Pools) -> None:
    gateway = await connect(pools.instances[0])
    assert isinstance(await gateway.read(), Status), "the first report comes with the welcome"
    gateway.send(m.GatewayHello(GatewayId("again")))
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await gateway.news()
    await gateway.close()


async def test_a_sequence_goes_by_hand_from_prefill_to_decode(pools: Pools, reference: Reference) -> None:
    source, target = [await connect(instance) for instance in pools.instances]
    source.send(Add(spec("s@1")))
    (prefilled,) = await source.news()
    assert isinstance(prefilled, Prefilled)
    expected = tuple(reference.output(PROMPT, GREEDY))
    assert (prefilled.first.position, prefilled.first.tokens) == (0, expected[:1])
    assert prefilled.first.finish_reason is None
    assert prefilled.ticket.computed_tokens == len(PROMPT)
    assert pools.instances[0].server.open_sequences == 1, "held until it is released"

    target.send(Adopt(replace(spec("s@2"), output=expected[:1]), prefilled.ticket))
    news = await target.news_until(lambda item: isinstance(item, Tokens) and item.finish_reason is not None)
    assert news[0] == Adopted(SequenceId("s@2"), prefilled.ticket.ticket_id)
    given = [item for item in news if isinstance(item, Tokens)]
    assert [item.position for item in given] == list(range(1, 12))
    assert [t for item in given for t in item.tokens] == list(expected[1:])
    assert given[-1].finish_reason is FinishReason.LENGTH
    source.send(Release(prefilled.ticket.ticket_id))
    await pools.audit()
    await source.close()
    await target.close()


async def test_a_ticket_that_does_not_fit_is_a_lost_handoff(pools: Pools) -> None:
    source, target = [await connect(instance) for instance in pools.instances]
    source.send(Add(spec("s@1")))
    (prefilled,) = await source.news()
    assert isinstance(prefilled, Prefilled)
    target.send(Adopt(spec("s@2"), prefilled.ticket))  # without the token from prefill
    (unfit,) = await target.news()
    assert isinstance(unfit, Lost), "another target would not fit either: it must be prefilled again"
    other = replace(prefilled.ticket, layout="another model")
    target.send(Adopt(replace(spec("s@3"), output=prefilled.first.tokens), other))
    (lost,) = await target.news()
    assert isinstance(lost, Lost)
    assert "does not fit" in lost.reason
    source.send(Release(prefilled.ticket.ticket_id))
    await source.close()
    await target.close()


async def test_a_draining_instance_says_so_and_refuses(pools: Pools) -> None:
    instance = pools.instances[1]
    gateway = await connect(instance)
    await gateway.read()
    instance.server.begin_to_leave(math.inf)
    status = await gateway.read()
    assert isinstance(status, Status)
    assert status.draining
    gateway.send(Add(spec("s@1")))
    (refused,) = await gateway.news()
    assert isinstance(refused, Refused)
    assert refused.kind is FailKind.DRAINING
    await gateway.close()


async def test_a_gateway_that_leaves_takes_its_sequences_with_it(pools: Pools) -> None:
    decode = pools.instances[1]
    gateway = await connect(decode)
    gateway.send(Add(spec("s@1", replace(GREEDY, max_tokens=900))))
    await gateway.news()
    assert decode.server.open_sequences == 1
    await gateway.close()
    await until(lambda: decode.server.open_sequences == 0, "nobody owns it")


async def test_a_report_counts_what_arrives_while_a_step_runs(pools: Pools) -> None:
    prefill, go_on = pools.instances[0], threading.Event()

    def hold(_: StepPlan) -> None:
        assert go_on.wait(30)

    executor(prefill).before = hold
    gateway = await connect(prefill)
    gateway.send(Add(spec("runs@1")))
    await until(lambda: executor(prefill).steps == 1, "the first is being computed")
    gateway.send(Add(spec("waits@1", prompt=PROMPT[:30])))
    async with asyncio.timeout(30):
        while True:
            report = await gateway.read()
            if isinstance(report, Status) and report.waiting == 1:
                break
    assert report.queued_tokens == len(PROMPT) + 30
    go_on.set()
    for _ in range(2):
        await gateway.news()
    await gateway.close()


class _Frames:
    """A gateway's connection that stores received frames."""

    def __init__(self) -> None:
        self.news: list[News] = []
        self.reports: list[Status] = []

    def send(self, message: m.Frame | Status) -> bool:
        m.encode(message)  # raises what a connection raises
        if isinstance(message, Status):
            self.reports.append(message)
        else:
            self.news += message.news
        return True


def _served(*names: str) -> tuple[InstanceServer, _Frames]:
    welcome = m.InstanceWelcome(ReplicaId("p#0"), "prefill", NodeId("n"), "l", 4, 32, 128)
    server, frames = InstanceServer(welcome, SECRET), _Frames()
    by_hand.own(server, frames, *names)
    by_hand.greet(server, frames)
    return server, frames


async def test_an_answer_that_is_too_large_ends_its_own_request_only() -> None:
    server, frames = _served("near", "large", "far")
    row = TokenLogprobs(100_000, -1.23456, tuple((100_000 + i, -12.345678 - i) for i in range(20)))
    large = Tokens(SequenceId("large"), 0, (1,), prompt_logprobs=(row,) * 100_000, cached_tokens=0)
    by_hand.tell(server, [Tokens(SequenceId("near"), 5, (7,)), large, Tokens(SequenceId("far"), 5, (8,))])
    near, refused, far = frames.news
    assert isinstance(near, Tokens)
    assert isinstance(far, Tokens)
    assert (near.tokens, far.tokens) == ((7,), (8,))
    assert isinstance(refused, Refused)
    assert (refused.sequence_id, refused.kind) == ("large", FailKind.INVALID)
    assert refused.reason.startswith("the response is too large to send, request fewer log-probabilities")
    assert by_hand.owned(server) == {"near", "far"}


async def test_a_handoff_of_too_many_blocks_is_refused_with_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice was to request fewer log-probabilities, of which there were none."""
    monkeypatch.setattr(m, "MAX_FRAME_BYTES", 4000)
    server, frames = _served("long")
    extents = tuple(BlockExtent(4096 * i, i, 4096, BlockHash(b"h" * 16)) for i in range(100))
    ticket = HandoffTicket("t", ReplicaId("p#0"), NodeId("n"), "/segment", "layout", 1600, extents)
    by_hand.tell(server, [Prefilled(Tokens(SequenceId("long"), 0, (7,)), ticket)])
    (refused,) = frames.news
    assert isinstance(refused, Refused)
    assert (refused.sequence_id, refused.kind) == ("long", FailKind.INVALID)
    assert refused.reason.startswith(
        "the prompt is too long to be handed over in 100 blocks: send a shorter one, or set a larger [engine] block_tok"
    )


async def test_a_gateway_without_the_ticket_is_told_that_the_handoff_expired() -> None:
    """It waited for the ticket until the request's deadline."""
    server, frames = _served("a", "b")
    expired = Lost(SequenceId("a"), "its handoff expired")
    by_hand.tell(server, [expired, HandoffClosed(SequenceId("a"), "t", HandoffEnd.EXPIRED)])
    by_hand.tell(server, [HandoffClosed(SequenceId("b"), "u", HandoffEnd.RELEASED)])
    assert frames.news == [expired]
    assert not server.open_sequences


async def test_a_report_counts_those_whose_blocks_are_still_on_their_way() -> None:
    """They use capacity: an instance with many pulls must not look idle to all gateways."""
    server, frames = _served()
    inside = dataclasses.replace(Bench().engine.snapshot(0.0), waiting=1, running=2, pulling=3, fetching=4, held=5)
    loop = SimpleNamespace(
        snapshot=inside, unseen=(1, 40), time_scale=1.0, progress_age_s=lambda: 0.0, step_limit_s=lambda: 1.0
    )
    by_hand.serve(server, loop)
    by_hand.report(server)
    assert [(report.waiting, report.running) for report in frames.reports] == [(2, 9)], "and who has just come"


async def test_every_gateway_learns_at_once_what_another_has_sent() -> None:
    """With the regular reports alone, which this server does not send, all gateways chose the same idle instance."""
    server, sender = _served()
    other = _Frames()
    by_hand.greet(server, other)
    by_hand.start(server)
    posted: list[Add] = []
    loop = SimpleNamespace(
        snapshot=Bench().engine.snapshot(0.0), time_scale=1.0, post=posted.append, progress_age_s=lambda: 0.0,
        step_limit_s=lambda: 1.0,
    )  # fmt: skip
    loop.unseen = (1, len(PROMPT))
    by_hand.serve(server, loop)
    by_hand.order(server, sender, m.encode(Add(spec("s@1")))[4:])
    await until(lambda: bool(other.reports), "the arrival is reported")
    assert len(posted) == other.reports[0].waiting == 1
    assert other.reports[0].queued_tokens == len(PROMPT)
    loop.unseen = (0, 0)
    by_hand.tell(server, [Tokens(SequenceId("s@1"), 0, (7,), cached_tokens=0)])
    await until(lambda: len(other.reports) == 2, "the computed prompt is reported")
    assert other.reports[1].queued_tokens == 0
    by_hand.hang_up(server, other)
    by_hand.order(server, sender, m.encode(Add(spec("t@1")))[4:])
    await asyncio.sleep(0.05)
    assert len(sender.reports) == 2, "a single gateway knows what it has sent"


async def test_a_request_has_as_long_as_the_gateway_says_in_the_gateways_time() -> None:
    """A simulated system that runs twenty times as fast gave requests up after a twentieth of their time."""
    server, frames = _served()
    told: list[Add | Adopt] = []
    by_hand.serve(server, SimpleNamespace(time_scale=20.0, post=told.append))
    ticket = HandoffTicket("t", ReplicaId("p#1"), NodeId("n"), "/s", "l", 40, ())
    for message in (Add(spec("a@1")), Adopt(spec("b@1"), ticket)):
        by_hand.order(server, frames, m.encode(message)[4:])
    first, second = (replace(spec(name), time_left_s=20.0 * 60.0) for name in ("a@1", "b@1"))
    assert told == [Add(first), Adopt(second, ticket)]


async def test_when_to_come_back_and_how_long_a_prompt_waited_are_told_in_the_gateways_time() -> None:
    """Clients of a simulated system that runs twenty times as fast got a Retry-After twenty times as long."""
    server, frames = _served("a", "b")
    by_hand.serve(server, SimpleNamespace(time_scale=20.0))
    by_hand.tell(
        server, [refusal(SequenceId("b"), OverloadedError("8 sequences are already queued", retry_after_s=60.0))]
    )
    assert frames.news == [Refused(SequenceId("b"), FailKind.OVERLOADED, "8 sequences are already queued", 3.0)]
    by_hand.tell(server, [Tokens(SequenceId("a"), 0, (7,), cached_tokens=0, waited_s=60.0)])
    assert frames.news[1:] == [Tokens(SequenceId("a"), 0, (7,), cached_tokens=0, waited_s=3.0)]
