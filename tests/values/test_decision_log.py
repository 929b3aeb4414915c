"""Outcomes as plain values, and a gateway's events handled again by a fresh core."""

from enum import Enum
from typing import NoReturn, get_args

import msgspec
from msgspec.structs import replace

from serving.errors import UnavailableError
from serving.gateway.core import events as e
from serving.gateway.core.gateway import Gateway
from serving.gateway.core.gateway_admission import AdmissionLimits
from serving.gateway.core.gateway_record import GatewayCall, noted
from serving.gateway.core.settings import GatewaySettings
from serving.ids import BlockHash, NodeId, ReplicaId, RequestId, SequenceId
from serving.tools.replay import ReplayResult, replay_log
from serving.values.decision_log import CallRecord, End, Frames, LogEncoder, Raised, checksum, outcome, perform, plain
from serving.values.instances import Status
from serving.values.jobs import GenerationJob
from serving.values.news import Adopted, FailKind, Leaving, Lost, News, Prefilled, Refused, Tokens
from serving.values.orders import Adopt, Send
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
from tests.instance.decision_logs import doctored

SPEC = SequenceSpec(SequenceId("r/0"), (1, 2, 3), SamplingParams(max_tokens=4), output=(9,))
TICKET = HandoffTicket("t", ReplicaId("p"), NodeId("n"), "/s", "l", 3, ())
P, Q, D = ReplicaId("p"), ReplicaId("q"), ReplicaId("d")


class Colour(Enum):
    """An object with a value."""

    RED = "red"


def test_plain_values_leave_defaults_out() -> None:
    logprobs = (TokenLogprobs(1, -0.5, ((2, -1.0),)),)
    told = Tokens(SequenceId("r/0@1"), 3, (1, 2), logprobs=logprobs, finish_reason=FinishReason.STOP)
    assert plain(told) == {
        "is": "Tokens",
        "sequence_id": "r/0@1",
        "position": 3,
        "tokens": (1, 2),
        "logprobs": [{"is": "TokenLogprobs", "token": 1, "logprob": -0.5, "top": [(2, -1.0)]}],
        "finish_reason": FinishReason.STOP,
    }
    sent = plain(Send(ReplicaId("d"), Adopt(SPEC, TICKET)))
    assert isinstance(sent, dict)
    assert sent["replica"] == "d"
    order = sent["order"]
    assert (order["ticket"], order["spec"]["id"], order["spec"]["tokens"]) == ("t", "r/0", (3, 1, checksum([9])))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plain((Colour.RED, None, 1.5)))) == ["red", None, 1.5]


def test_checksums_see_order_and_value() -> None:
    assert checksum([1, 2]) != checksum([2, 1])
    assert checksum([1, 2]) != checksum([1, 3])
    assert checksum(()) == 0
    assert checksum((1,)) == 0x99F8B879, "the CRC-32 of 01 00 00 00"


class RouteDecode(CallRecord, frozen=True):
    """A call that cannot be carried out."""

    def on(self, machine: object) -> NoReturn:
        """Do nothing: there is no instance."""
        raise UnavailableError("no decode instance is up")


def test_an_error_is_an_outcome() -> None:
    call = RouteDecode()
    output, kept, error = perform(call, None)
    assert (output, type(error)) == (None, UnavailableError)
    assert outcome(call, kept) == kept
    assert kept == Raised("UnavailableError", "no decode instance is up")


SETTINGS = GatewaySettings(
    "g", ("prefill", "decode"), 100.0, 2, 8, "load", 7, 5.0, AdmissionLimits(1, 50, 2, shared=True), 2, 5.0, 0.5
)


def status(**changed: object) -> Status:
    """Status of an idle instance, with `changed` fields."""
    return replace(Status(0, 0, 0, 10, False, 0.0, 0.0), **changed)


def job(prompt: tuple[int, ...] = (1, 2, 3), choices: int = 1, time_left_s: float = 60.0) -> GenerationJob:
    """A request."""
    spec = replace(SPEC, prompt=prompt, output=(), time_left_s=time_left_s)
    return GenerationJob(RequestId("r"), (spec,) * choices, "key", 2.0, 17)


def handoff(name: str, ticket_id: str, *tokens: int) -> Prefilled:
    """A computed prompt."""
    blocks = (BlockExtent(0, 2**64 - 1, 512, BlockHash(b"h")),)
    first = Tokens(SequenceId(name), 0, tokens, (TokenLogprobs(5, -0.25),), (), 16, None, PoolUse(12, 4), None, 0.5)
    return Prefilled(first, replace(TICKET, ticket_id=ticket_id, blocks=blocks))


def says(replica: ReplicaId, *news: News) -> e.InstanceSays:
    """A frame."""
    return e.InstanceSays(replica, news)


LIFE: tuple[tuple[e.GatewayEvent, float], ...] = (
    (e.Expect(False), 0.5),
    (e.Submit(1, job()), 0.6),  # no instance is up or expected
    (e.Expect(True), 0.7),
    (e.InstanceUp(P, "prefill", NodeId("n"), 10), 1.0),
    (e.InstanceStatus(P, status(tokens_per_s=50.0, gateways=2)), 1.0),
    (e.Submit(2, job((1, 2, 3, 4), choices=2)), 1.1),
    (says(P, handoff("g-2/0@1", "t1", 5)), 1.2),  # no decode instance: it waits for one
    (e.InstanceUp(D, "decode", NodeId("m"), 10), 1.3),
    (e.InstanceStatus(D, status(lost_paths=(Q,), slow_paths=(P,))), 1.3),
    (e.Look(), 1.4),
    (e.Configure(SETTINGS.limits, SETTINGS.max_attempts, SETTINGS.role_wait_s, SETTINGS.empty_role_s), 1.4),
    (says(D, Refused(SequenceId("g-2/0@2"), FailKind.ENGINE, "no", 2.0)), 1.5),
    (e.Submit(3, job()), 1.5),  # it waits for its turn
    (e.Submit(4, job()), 1.5),  # one too many
    (
        says(D, Adopted(SequenceId("g-2/0@3"), "t1"), Tokens(SequenceId("g-2/0@3"), 1, (6, 7), drafts=DraftUse(3, 1))),
        1.6,
    ),
    (says(P, Leaving(SequenceId("g-2/1@1"), handoff=False)), 1.7),
    (e.StopChoice(2, 0), 1.8),
    (says(P, Lost(SequenceId("g-2/1@2"), "device lost")), 1.9),
    (e.CancelJob(2), 2.0),  # the next one starts
    (e.Unsent(P, SequenceId("g-3/0@1")), 2.1),
    (e.TooLarge(SequenceId("g-3/0@2"), "a prompt of 40 MiB"), 2.2),
    (e.Submit(5, job((1, -1))), 2.3),  # a request that no API accepts: a bug
    (e.Submit(6, job(time_left_s=1.0)), 2.4),
    (e.InstanceDown(P, 2.3), 2.5),
    (says(D, Tokens(SequenceId("g-6/0@2"), 0, (8, 9))), 2.6),
    (e.Look(), 3.5),  # its time is over
    (says(D, Tokens(SequenceId("g-6/0@2"), 2, (1,), finish_reason=FinishReason.STOP)), 3.6),
    (e.Submit(7, job()), 3.7),
    (e.EndAll("the gateway leaves"), 3.8),
)


def calls(*life: tuple[e.GatewayEvent, float]) -> list[GatewayCall]:
    """Events as they are recorded."""
    return [GatewayCall(noted(event), now) for event, now in life]


def log(*life: tuple[e.GatewayEvent, float]) -> bytes:
    """A log of these events, as a gateway would write it."""
    encoder, core = LogEncoder(), Gateway(SETTINGS)
    data = encoder.begin(SETTINGS)
    for (event, now), call in zip(life, calls(*life), strict=True):
        data += encoder.pair(call, perform(GatewayCall(event, now), core)[1])
        core.check()
    return data + encoder.pair(End(), None)


def replayed(data: bytes) -> ReplayResult:
    """Result of replaying a log."""
    return replay_log(data, "log")


def test_a_gateways_life_is_replayed() -> None:
    result = replayed(log(*LIFE))
    assert (result.kind, result.name, result.difference, result.ending) == ("gateway", "g", None, "")
    assert result.total == len(LIFE)


def test_every_kind_of_event_effect_and_news_survives_the_log() -> None:
    core = Gateway(SETTINGS)
    effects = [effect for event, now in LIFE for effect in core.on(event, now)]
    assert {type(event) for event, _ in LIFE} == set(get_args(e.GatewayEvent))
    without_ssd = {e.PrefetchKv}
    assert {type(effect) for effect in effects} == set(get_args(e.GatewayEffect)) - without_ssd
    said = [one for event, _ in LIFE if isinstance(event, e.InstanceSays) for one in event.news]
    assert {type(one) for one in said} == set(get_args(News))
    header, *pairs = Frames(log(*LIFE), "log")
    assert msgspec.msgpack.decode(header, type=GatewaySettings) == SETTINGS
    decoder = msgspec.msgpack.Decoder(tuple[GatewayCall | End, msgspec.Raw])
    assert [decoder.decode(pair)[0] for pair in pairs] == [*calls(*LIFE), End()]


def test_calls_are_counted_and_named_by_their_events() -> None:
    result = replayed(log(*LIFE))
    assert (result.calls["Submit"], result.calls["InstanceSays"], result.calls["Look"]) == (7, 7, 2)
    assert [call.title() for call in calls(*LIFE)[:2]] == ["Expect at 0.500000 s", "Submit at 0.600000 s"]


def test_a_handoff_is_written_without_its_blocks_which_decide_nothing() -> None:
    event = says(P, Adopted(SequenceId("g-1/0@1"), "t"), handoff("g-2/0@1", "t1", 5))
    written = noted(event)
    assert isinstance(written, e.InstanceSays)
    assert written.news[0] == event.news[0]
    short = written.news[1]
    assert isinstance(short, Prefilled)
    assert (short.first, short.ticket) == (handoff("g-2/0@1", "t1", 5).first, replace(TICKET, ticket_id="t1"))
    assert noted(LIFE[0][0]) is LIFE[0][0]
    whole, cut = Gateway(SETTINGS), Gateway(SETTINGS)
    for event_, now in LIFE:
        assert plain(whole.on(event_, now)) == plain(cut.on(noted(event_), now))


def test_an_event_that_is_missing_is_found() -> None:
    at = next(index for index, (event, _) in enumerate(LIFE) if isinstance(event, e.Submit) and event.number == 2)
    found = replayed(doctored(log(*LIFE), lambda calls: calls.__delitem__(at))).difference
    assert found is not None
    assert (found.number, found.call) == (at + 1, "InstanceSays at 1.200000 s")
    assert (found.where, found.expected) == ("[0].is", "'SequenceUpdate'"), "the handoff is of no job now"


def test_an_outcome_that_was_changed_is_found() -> None:
    at = next(index for index, (event, _) in enumerate(LIFE) if isinstance(event, e.Look))

    def reroute(calls: list[tuple[object, list[dict[str, dict[str, str]]]]]) -> None:
        calls[at][1][0]["decision"]["reason"] += ", so they say"

    def lose_effect(calls: list[tuple[object, list[object]]]) -> None:
        del calls[at][1][-1]

    for change, where in ((reroute, "[0].decision.reason"), (lose_effect, "length of the outcome")):
        found = replayed(doctored(log(*LIFE), change)).difference
        assert found is not None
        assert (found.number, found.call, found.where) == (at + 1, "Look at 1.400000 s", where)


def test_a_tie_broken_otherwise_is_a_difference() -> None:
    life: list[tuple[e.GatewayEvent, float]] = []
    for replica in (P, Q):
        life.append((e.InstanceUp(replica, "prefill", NodeId("n"), 10), 1.0))
        life.append((e.InstanceStatus(replica, status()), 1.0))
    for number in range(1, 4):
        life += [(e.Submit(number, job()), 1.0), (e.CancelJob(number), 1.0)]
        life += [(e.InstanceStatus(replica, status()), 1.0) for replica in (P, Q)]
    data = log(*life)
    assert replayed(data).identical
    found = replayed(doctored(data, lambda calls: calls.__delitem__(slice(4, 8)))).difference
    assert found is not None
    assert (found.number, found.where, found.expected, found.got) == (5, "[0].decision.replica", "'q'", "'p'")
