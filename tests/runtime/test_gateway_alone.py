"""One gateway's backend, with links that only note what is sent: what no real instance does at will."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from serving.api.backend import GenerationJob
from serving.errors import EngineError, InvalidRequestError, OverloadedError, UnavailableError
from serving.ids import BlockHash, GatewayId, NodeId, ReplicaId, RequestId, SequenceId
from serving.link import messages as m
from serving.policy.journal_commands import LATER_S, FailKind, NeedDecode, NeedPrefill, SendPrefill
from serving.policy.request import BlockExtent, FinishReason, HandoffTicket, SamplingParams, SequenceSpec
from serving.policy.request_journal import SequenceJournal
from serving.runtime.live_backend import LiveBackend
from tests.runtime.harness import small_config

pytestmark = pytest.mark.asyncio


class Link:
    """An instance that is up, heard of at a time, and silent."""

    used, still_since, up = False, None, True
    reserved_tokens = reserved_sequences = reserved_blocks = 0

    def __init__(self, pool: str, heard_at: float, kv_blocks: int) -> None:
        self.replica = ReplicaId(f"{pool}#0")
        self.heard_at = heard_at
        self.sent: list[m.Message] = []
        self.welcome = m.Welcome(self.replica, pool, NodeId("n"), "l", 16, kv_blocks, 4096)
        self.status = m.Status(0, 0, 0, 100, draining=False, progress_age_s=0.0, tokens_per_s=0.0)

    def send(self, message: m.Message) -> bool:
        m.encode(message)  # raises what a connection raises
        self.sent.append(message)
        return True


def linked(backend: LiveBackend, pool: str, heard_at: float | None = None, kv_blocks: int = 100) -> Link:
    link = Link(pool, asyncio.get_running_loop().time() if heard_at is None else heard_at, kv_blocks)
    backend.links._links[link.replica] = cast(Any, link)
    return link


def job(sequences: int, max_tokens: int = 4) -> GenerationJob:
    few = SamplingParams(max_tokens=max_tokens)
    specs = (SequenceSpec(SequenceId(f"r/{i}"), (1, 2, 3), few) for i in range(sequences))
    return GenerationJob(RequestId("r"), tuple(specs))


class Clock:
    """The backend's, which stands still until it is moved."""

    def __init__(self, backend: LiveBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        self._backend = backend
        self.start = self._now = backend._now()
        monkeypatch.setattr(backend, "_now", lambda: self._now)

    def sweep_after(self, seconds: float) -> None:
        """As the backend's sweeper does so long after the start."""
        self._now = self.start + seconds
        self._backend._sweep(self._now)


def refuse(backend: LiveBackend, link: Link) -> None:
    """The instance is full, for the last order and whatever comes of that."""
    asked = 0
    while len(link.sent) > asked:
        asked, order = len(link.sent), link.sent[-1]
        assert isinstance(order, m.Add | m.Adopt)
        refused = m.Refused(order.spec.sequence_id, FailKind.OVERLOADED, "256 sequences wait already", 1.0)
        backend._on_frame(cast(Any, link), m.Frame(1, (refused,)))


def _end(backend: LiveBackend) -> None:
    assert backend._sweeper is not None
    backend._sweeper.cancel()


def starved(backend: LiveBackend) -> bool:
    return backend.starved


async def test_a_gateway_that_was_stopped_looks_for_an_instance_before_it_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = small_config(Path("/nowhere"), mode="aggregated")
    backend = LiveBackend(GatewayId("g"), "s", config, ["aggregated"])
    clock = Clock(backend, monkeypatch)
    link = linked(backend, "aggregated", heard_at=clock.start - 5.0)  # nobody believes that it is there
    generation = backend.submit(job(1))
    clock.sweep_after(1.0)
    assert not link.sent
    link.heard_at = asyncio.get_running_loop().time()  # stopped until here; what came meanwhile is read first
    clock.sweep_after(config.gateway.role_wait_s + 5.0)
    assert [type(message) for message in link.sent] == [m.Add]
    assert not generation.closed
    _end(backend)


async def test_a_choice_that_is_stopped_while_its_handoff_waits_no_longer_asks_for_an_instance() -> None:
    backend = LiveBackend(GatewayId("g"), "s", small_config(Path("/nowhere")), ["prefill", "decode"])
    prefill = linked(backend, "prefill")
    generation = backend.submit(job(2))
    for i, add in enumerate(list(prefill.sent)):
        assert isinstance(add, m.Add)
        ticket = HandoffTicket(f"t{i}", prefill.replica, NodeId("n"), "/s", "l", 3, ())
        first = m.Tokens(add.spec.sequence_id, 0, (7,), cached_tokens=0)
        backend._on_frame(cast(Any, prefill), m.Frame(1, (m.Prefilled(first, ticket),)))
    assert starved(backend)
    generation.stop(0)
    decode = linked(backend, "decode")
    backend._sweep(backend._now())
    assert [type(message) for message in decode.sent] == [m.Adopt], "the other choice goes on"
    assert not starved(backend)
    _end(backend)


async def test_a_request_that_every_instance_refuses_is_told_what_they_say_of_when_to_come_back() -> None:
    """It was told one second, whatever they said."""
    backend = LiveBackend(GatewayId("g"), "s", small_config(Path("/nowhere"), mode="aggregated"), ["aggregated"])
    link = linked(backend, "aggregated")
    generation = backend.submit(job(1))
    says = iter((9.0, 7.0, 8.0))
    seen = 0
    while len(link.sent) > seen:
        seen, (add,) = len(link.sent), link.sent[seen:]
        assert isinstance(add, m.Add)
        refused = m.Refused(add.spec.sequence_id, FailKind.OVERLOADED, "256 sequences wait already", next(says))
        backend._on_frame(cast(Any, link), m.Frame(1, (refused,)))
    with pytest.raises(OverloadedError) as error:
        await generation.next()
    assert error.value.retry_after_s == 7.0
    _end(backend)


async def test_a_stream_whose_decode_instances_are_full_waits_until_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asked three times within a millisecond, and the client was told 429 in mid-stream."""
    backend = LiveBackend(GatewayId("g"), "s", small_config(Path("/nowhere")), ["prefill", "decode"])
    clock = Clock(backend, monkeypatch)
    prefill, decode = linked(backend, "prefill"), linked(backend, "decode")
    generation = backend.submit(job(1))
    (add,) = prefill.sent
    assert isinstance(add, m.Add)
    ticket = HandoffTicket("t0", prefill.replica, NodeId("n"), "/s", "l", 3, ())
    first = m.Tokens(add.spec.sequence_id, 0, (7,), cached_tokens=0)
    backend._on_frame(cast(Any, prefill), m.Frame(1, (m.Prefilled(first, ticket),)))
    refuse(backend, decode)
    assert len(decode.sent) == 2, "once, and once more when there was no other"
    assert not generation.closed
    clock.sweep_after(LATER_S - 0.01)
    assert len(decode.sent) == 2, "it gives them time"
    clock.sweep_after(LATER_S)
    adopt = decode.sent[-1]
    assert isinstance(adopt, m.Adopt)
    end = m.Tokens(adopt.spec.sequence_id, 1, (8,), finish=FinishReason.STOP)
    backend._on_frame(cast(Any, decode), m.Frame(2, (end,)))
    assert [token for update in await generation.next() for token in update.tokens] == [7, 8]
    assert backend.counts()["running"] == 0
    _end(backend)


async def test_a_choice_that_all_instances_refuse_waits_once_another_choice_is_streamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole request ended with 429 in mid-stream, for the want of room for one of its choices."""
    backend = LiveBackend(GatewayId("g"), "s", small_config(Path("/nowhere"), mode="aggregated"), ["aggregated"])
    clock = Clock(backend, monkeypatch)
    link = linked(backend, "aggregated")
    generation = backend.submit(job(2))
    one, _ = link.sent
    assert isinstance(one, m.Add)
    backend._on_frame(cast(Any, link), m.Frame(1, (m.Tokens(one.spec.sequence_id, 0, (7,), cached_tokens=0),)))
    refuse(backend, link)
    assert not generation.closed
    clock.sweep_after(LATER_S)
    add = link.sent[-1]
    assert isinstance(add, m.Add)
    ends = [(one.spec.sequence_id, 1, 8), (add.spec.sequence_id, 0, 9)]
    news = [m.Tokens(name, at, (token,), cached_tokens=0, finish=FinishReason.STOP) for name, at, token in ends]
    backend._on_frame(cast(Any, link), m.Frame(2, tuple(news)))
    assert [(update.index, *update.tokens) for update in await generation.next()] == [(0, 7), (0, 8), (1, 9)]
    assert backend.counts()["running"] == 0
    _end(backend)


async def test_a_request_that_meets_one_leaving_instance_after_the_other_is_not_taken_for_the_cause() -> None:
    """It was sent before the gateway heard that the instance drains, and the refusal was lost as the link closed."""
    backend = LiveBackend(GatewayId("g"), "s", small_config(Path("/nowhere"), mode="aggregated"), ["aggregated"])
    link = linked(backend, "aggregated")
    generation = backend.submit(job(1))
    for _ in range(6):
        assert isinstance(link.sent[-1], m.Add)
        link.status = replace(link.status, draining=True)
        backend.links._down(cast(Any, link), "closed by the peer")
        link = linked(backend, "aggregated")
        backend._sweep(backend._now())
    (add,) = link.sent
    assert isinstance(add, m.Add)
    end = m.Tokens(add.spec.sequence_id, 0, (8,), cached_tokens=0, finish=FinishReason.STOP)
    backend._on_frame(cast(Any, link), m.Frame(2, (end,)))
    (update,) = await generation.next()
    assert update.resumptions == 0
    _end(backend)


async def test_a_stream_that_outgrew_the_prefill_instances_goes_on_at_a_decode_instance() -> None:
    """The prefill instance refused it as too long, and the client was told to shorten its prompt in mid-stream."""
    backend = LiveBackend(GatewayId("g"), "s", small_config(Path("/nowhere")), ["prefill", "decode"])
    prefill, decode = linked(backend, "prefill", kv_blocks=20), linked(backend, "decode")
    block_tokens = backend._router._block_tokens
    spec = SequenceSpec(SequenceId("r/0"), tuple(range(5)), SamplingParams(max_tokens=9999))
    journal = SequenceJournal(spec, 0.0)
    journal.start()
    (add,) = journal.prefill_routed(prefill.replica, 0.0)
    assert isinstance(add, SendPrefill)
    journal.tokens(add.spec.sequence_id, 0, tuple(range(20 * block_tokens - 7)))
    need = NeedPrefill(len(spec.prompt) + len(journal.output))
    assert backend._router.decide(need, journal).replica == prefill.replica, "it holds two more"
    journal.tokens(add.spec.sequence_id, 20 * block_tokens - 7, (1,))
    assert backend._router.decide(need, journal).replica == decode.replica


@pytest.mark.parametrize(
    ("room", "max_tokens", "pool"),
    [(2, 9999, "prefill"), (1, 9999, "decode"), (1, 1, "prefill"), (0, 1, "decode"), (-100, 9999, "decode")],
)
async def test_a_prompt_that_no_prefill_instance_can_hand_on_is_computed_where_it_goes_on(
    room: int, max_tokens: int, pool: str
) -> None:
    """One that left room for a single token ended with that one; a longer one was refused."""
    backend = LiveBackend(GatewayId("g"), "s", small_config(Path("/nowhere")), ["prefill", "decode"])
    links = {"prefill": linked(backend, "prefill", kv_blocks=20), "decode": linked(backend, "decode")}
    prompt = tuple(range(20 * backend._router._block_tokens - room))
    journal = SequenceJournal(SequenceSpec(SequenceId("r/0"), prompt, SamplingParams(max_tokens=max_tokens)), 0.0)
    decision = backend._router.decide(NeedPrefill(len(prompt)), journal)
    assert decision.replica == links[pool].replica


async def test_an_instance_that_is_too_small_for_one_prompt_is_still_known_for_the_others() -> None:
    """A long prompt, for which it was no choice, made the gateway forget all that it had been sent."""
    config = small_config(Path("/nowhere"), gateway={"routing": "locality"})
    backend = LiveBackend(GatewayId("g"), "s", config, ["prefill", "decode"])
    block = config.engine.block_tokens

    def reason(blocks: int) -> str:
        spec = SequenceSpec(SequenceId("r/0"), tuple(range(blocks * block)), SamplingParams(max_tokens=9))
        spec = replace(spec, prompt_hashes=backend._router.hashes(spec))
        return backend._router.decide(NeedPrefill(len(spec.prompt)), SequenceJournal(spec, 0.0)).reason

    small = linked(backend, "prefill", kv_blocks=20)
    assert reason(4).startswith("0 of 4 blocks")
    linked(backend, "decode")
    assert reason(40).startswith("0 of 40 blocks"), "decode computes it"
    assert reason(4).startswith("4 of 4 blocks")
    backend._on_down(cast(Any, small), "it died")
    assert reason(4).startswith("0 of 4 blocks")


async def test_a_prompt_that_fills_every_instance_is_computed_all_the_same() -> None:
    backend = LiveBackend(GatewayId("g"), "s", small_config(Path("/nowhere")), ["prefill", "decode"])
    prefill, _ = linked(backend, "prefill", kv_blocks=20), linked(backend, "decode", kv_blocks=20)
    prompt = tuple(range(20 * backend._router._block_tokens - 1))
    journal = SequenceJournal(SequenceSpec(SequenceId("r/0"), prompt, SamplingParams(max_tokens=9)), 0.0)
    assert backend._router.decide(NeedPrefill(len(prompt)), journal).replica == prefill.replica


async def test_a_choice_that_has_ended_holds_no_place_and_no_room_until_the_others_end() -> None:
    """Both were kept for the whole request: others waited for seats that nobody took."""
    limits = {"max_running_sequences": 2, "max_queued_requests": 1}
    backend = LiveBackend(GatewayId("g"), "s", small_config(Path("/nowhere"), gateway=limits), ["prefill", "decode"])
    prefill, decode = linked(backend, "prefill"), linked(backend, "decode")
    request = backend.submit(job(2, max_tokens=64))
    for i, add in enumerate(list(prefill.sent)):
        assert isinstance(add, m.Add)
        ticket = HandoffTicket(f"t{i}", prefill.replica, NodeId("n"), "/s", "l", 3, ())
        first = m.Tokens(add.spec.sequence_id, 0, (7,), cached_tokens=0)
        backend._on_frame(cast(Any, prefill), m.Frame(1, (m.Prefilled(first, ticket),)))
    promised = backend._router._reserve.blocks(decode.replica)
    assert promised == 2 * 4
    other = backend.submit(job(1))
    assert backend.counts() == {"running": 1, "queued": 1, "sequences": 2}
    assert (len(backend.room), backend.room.tokens) == (1, 3)
    adopt = next(message for message in decode.sent if isinstance(message, m.Adopt))
    end = m.Tokens(adopt.spec.sequence_id, 1, (8,), finish=FinishReason.STOP)
    backend._on_frame(cast(Any, decode), m.Frame(1, (end,)))
    assert backend.counts() == {"running": 2, "queued": 0, "sequences": 2}
    assert backend._router._reserve.blocks(decode.replica) == promised // 2
    request.stop(1)
    assert request.closed
    assert [type(message) for message in decode.sent] == [m.Adopt, m.Adopt, m.Cancel]
    assert backend.counts() == {"running": 1, "queued": 0, "sequences": 1}
    other.cancel()
    assert backend.counts() == {"running": 0, "queued": 0, "sequences": 0}
    assert backend._router._reserve.blocks(decode.replica) == 0
    _end(backend)


async def test_a_bug_that_a_job_meets_when_its_turn_comes_ends_that_job_alone() -> None:
    """It stood for its whole time where it was, and who had just come was told of a failure that was not his."""
    limits = {"max_running_sequences": 1}
    backend = LiveBackend(GatewayId("g"), "s", small_config(Path("/nowhere"), gateway=limits), ["prefill", "decode"])
    broken, next_one = backend.submit(job(1)), backend.submit(job(1))  # nobody is there yet: both wait
    linked(backend, "prefill")

    def fails() -> None:
        raise ZeroDivisionError

    setattr(broken.choices[0].journal, "start", fails)  # noqa: B010 - mypy knows that it is a method
    other = backend.submit(job(1))
    assert (broken.closed, next_one.closed, other.closed) == (True, False, False)
    with pytest.raises(EngineError, match="the gateway failed on it"):
        await broken.next()
    assert backend.counts() == {"running": 1, "queued": 1, "sequences": 1}
    next_one.cancel()
    other.cancel()
    assert backend.counts() == {"running": 0, "queued": 0, "sequences": 0}
    _end(backend)


async def test_a_request_that_fits_no_frame_is_told_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told that the gateway had failed on it."""
    backend = LiveBackend(GatewayId("g"), "s", small_config(Path("/nowhere")), ["prefill", "decode"])
    prefill, decode = linked(backend, "prefill"), linked(backend, "decode")
    handed = backend.submit(job(1))
    (add,) = prefill.sent
    assert isinstance(add, m.Add)
    extents = tuple(BlockExtent(4096 * i, i, 4096, BlockHash(b"h" * 16)) for i in range(100))
    ticket = HandoffTicket("t", prefill.replica, NodeId("n"), "/s", "l", 3, extents)
    monkeypatch.setattr(m, "MAX_FRAME_BYTES", 1000)
    backend._on_frame(cast(Any, prefill), m.Frame(1, (m.Prefilled(m.Tokens(add.spec.sequence_id, 0, (7,)), ticket),)))
    assert [update.tokens for update in await handed.next()] == [(7,)]
    with pytest.raises(InvalidRequestError, match="too long to be handed over in 100 blocks"):
        await handed.next()
    assert [type(message) for message in decode.sent] == [m.Cancel], "of what never came"
    assert prefill.sent[1:] == [m.Release("t")]
    monkeypatch.setattr(m, "MAX_FRAME_BYTES", 40)
    long = backend.submit(job(1))
    with pytest.raises(InvalidRequestError, match="too long to be sent to an instance, send a shorter one"):
        await long.next()
    assert backend.counts() == {"running": 0, "queued": 0, "sequences": 0}
    _end(backend)


async def test_a_handoff_goes_only_where_it_can_ever_fit() -> None:
    """It went to the decode instance with the most free blocks, was refused as too long, and ended in mid-stream."""
    backend = LiveBackend(GatewayId("g"), "s", small_config(Path("/nowhere")), ["prefill", "decode"])
    prefill, small = linked(backend, "prefill"), linked(backend, "decode", kv_blocks=20)
    prompt = tuple(range(20 * backend._router._block_tokens - 1))
    journal = SequenceJournal(SequenceSpec(SequenceId("r/0"), prompt, SamplingParams(max_tokens=9999)), 0.0)
    journal.start()
    (add,) = journal.prefill_routed(prefill.replica, 0.0)
    assert isinstance(add, SendPrefill)
    ticket = HandoffTicket("t", prefill.replica, NodeId("n"), "/s", "l", len(prompt), ())
    (_, need) = journal.handoff_ready(add.spec.sequence_id, ticket, 0, (7,))
    assert isinstance(need, NeedDecode)
    with pytest.raises(UnavailableError):  # where nobody else comes, it stays where it is
        backend._router.decide(need, journal)
    large = Link("decode", small.heard_at, kv_blocks=100)
    large.replica = ReplicaId("decode#1")
    large.status = replace(large.status, blocks_free=10)
    backend.links._links[large.replica] = cast(Any, large)
    assert backend._router.decide(need, journal).replica == large.replica


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
async def test_waiting_in_the_instance_counts_as_queueing(mode: str) -> None:
    """A loaded instance's queue was told as time of the prompt's computation, and queueing as nothing."""
    pools = ["aggregated"] if mode == "aggregated" else ["prefill", "decode"]
    backend = LiveBackend(
        GatewayId("g"),
        "s",
        small_config(Path("/nowhere"), mode=mode),
        pools,
    )
    start = backend._now()
    link, *_ = [linked(backend, pool) for pool in pools]
    generation = backend.submit(job(1))
    (add,) = [message for message in link.sent if isinstance(message, m.Add)]
    tokens = m.Tokens(add.spec.sequence_id, 0, (7,), cached_tokens=0, waited_s=30.0)
    ticket = HandoffTicket("t", link.replica, NodeId("n"), "/s", "l", 3, ())
    news = tokens if mode == "aggregated" else m.Prefilled(tokens, ticket)
    backend._on_frame(cast(Any, link), m.Frame(1, (news,)))
    (update,) = await generation.next()
    assert update.queue_s is not None
    assert 30.0 <= update.queue_s <= 30.0 + backend._now() - start
    generation.cancel()
    _end(backend)
