"""Outcomes in plain values, and gateways' calls carried out on a fresh brain."""

import inspect
from enum import Enum

import msgspec
import pytest
from msgspec.structs import replace

from serving.engine.replay import replay_log
from serving.errors import DecisionLogError, HandoffError, UnavailableError
from serving.ids import GatewayId, NodeId, ReplicaId, SequenceId
from serving.policy import gateway_calls as c
from serving.policy.admission_calls import Finished, Offer, Overdue, Take, Withdraw
from serving.policy.admission_queue import AdmissionQueue
from serving.policy.decision_log import (
    CallRecord,
    End,
    LogEncoder,
    Raised,
    checksum,
    named_error,
    outcome,
    perform,
    plain,
)
from serving.policy.gateway_admission import Applicant
from serving.policy.gateway_router import GatewayRouter
from serving.policy.journal_commands import Deliver, FailKind, SendAdopt
from serving.policy.request import FinishReason, HandoffTicket, SamplingParams, SequenceSpec, TokenLogprobs
from serving.policy.request_journal import SequenceJournal
from serving.policy.router import InstanceView
from serving.runtime.gateway_recording import RecordedJournal, RecordedQueue, RecordedRouter
from tests.engine.decision_logs import doctored

SPEC = SequenceSpec(SequenceId("r/0"), (1, 2, 3), SamplingParams(max_tokens=4), output=(9,))
TICKET = HandoffTicket("t", ReplicaId("p"), NodeId("n"), "/s", "l", 3, ())
NAME = SequenceId("r/0")
VIEW = InstanceView(ReplicaId("p"), "prefill", NodeId("n"), 0, 0, 10, 10)


class Colour(Enum):
    """Something with a value."""

    RED = "red"


def test_plain_values_leave_defaults_out() -> None:
    told = Deliver((1, 2), logprobs=(TokenLogprobs(1, -0.5, ((2, -1.0),)),), finish_reason=FinishReason.STOP)
    assert plain(told) == {
        "is": "Deliver",
        "tokens": (1, 2),
        "logprobs": [{"is": "TokenLogprobs", "token": 1, "logprob": -0.5, "top": [(2, -1.0)]}],
        "finish_reason": FinishReason.STOP,
    }
    sent = plain(SendAdopt(ReplicaId("d"), SPEC, TICKET))
    assert isinstance(sent, dict)
    assert (sent["ticket"], sent["spec"]["id"], sent["spec"]["tokens"]) == ("t", "r/0", (3, 1, checksum([9])))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plain((Colour.RED, None, 1.5)))) == ["red", None, 1.5]


def test_checksums_see_order_and_value() -> None:
    assert checksum([1, 2]) != checksum([2, 1])
    assert checksum([1, 2]) != checksum([1, 3])
    assert checksum(()) == 0
    assert checksum((1,)) == 0x99F8B879, "the CRC-32 of 01 00 00 00"


def test_recorded_errors_keep_name_and_text() -> None:
    error = named_error(HandoffError, "HandoffChecksumError", "block 3")
    assert isinstance(error, HandoffError)
    assert f"{type(error).__name__}: {error}" == "HandoffChecksumError: block 3"


def test_an_error_is_an_outcome() -> None:
    brain = c.GatewayBrain(GatewayRouter(1.0, 16))
    call = c.RouteDecode((), 1, ())
    output, kept, error = perform(call, brain)
    assert (output, type(error)) == (None, UnavailableError)
    assert outcome(call, kept) == kept
    assert isinstance(kept, Raised)
    assert kept.raised == "UnavailableError"


@pytest.mark.parametrize(
    ("own", "recorded"),
    [(SequenceJournal, RecordedJournal), (GatewayRouter, RecordedRouter), (AdmissionQueue, RecordedQueue)],
)
def test_recorded_parts_have_every_method(own: type, recorded: type) -> None:
    def surface(kind: type) -> dict[str, object]:
        named = {name: member for name, member in vars(kind).items() if not name.startswith("_")}
        return {name: inspect.signature(m) if inspect.isfunction(m) else type(m) for name, m in named.items()}

    assert surface(recorded) == surface(own)


def log(*calls: CallRecord) -> bytes:
    """A log of these calls, as a gateway would write it."""
    encoder, brain = LogEncoder(), c.GatewayBrain(GatewayRouter(1.0, 16))
    data = encoder.begin(c.GatewayHeader(GatewayId("g"), 1.0, 16, 0))
    for call in calls:
        data += encoder.pair(call, perform(call, brain)[1])  # type: ignore[arg-type]
    return data


LIFE = (
    c.OpenJournal(SPEC, 1.0, 3),
    c.Start(NAME),
    c.RoutePrefill((VIEW,), 4, (), ()),
    c.Forget(ReplicaId("gone")),
    c.PrefillRouted(NAME, ReplicaId("p"), 2.0),
    c.HandoffReady(NAME, SequenceId("r/0@1"), TICKET, 1, (5,)),
    c.DecodeRouted(NAME, ReplicaId("d"), 3.0),
    c.RefusedBy(NAME, SequenceId("r/0@2"), FailKind.OVERLOADED, "full"),
    c.DecodeRouted(NAME, ReplicaId("d"), 3.5),
    c.HandoffLost(NAME, SequenceId("r/0@3"), "the link is down"),
    c.PrefillRouted(NAME, ReplicaId("p"), 4.0),
    c.Unsent(NAME, ReplicaId("p")),
    c.ServeWhole(NAME, ReplicaId("p"), 4.1),
    c.Leaving(NAME, SequenceId("r/0@5")),
    c.PrefillRouted(NAME, ReplicaId("p"), 4.2),
    c.HandoffReady(NAME, SequenceId("r/0@6"), TICKET, 1, (5,)),
    c.DecodeAtSource(NAME, 4.3),
    c.InstanceLost(NAME, ReplicaId("p")),
    c.GiveUp(NAME, FailKind.DEADLINE, "too late"),
    Offer(Applicant(1, 1, 50, 16, 9.0), 0, 4.5, True),
    Offer(Applicant(2, 1, 50, 16, 9.0, "key", 2.0, -1, 7), 0, 4.6, False),
    Take(0, 4.7),
    Finished(0.5),
    Withdraw(2),
    Overdue(4.9, 4.8),
    c.PrefillRouted(NAME, ReplicaId("p"), 5.0),
    End(),
)


def test_a_gateways_life_is_replayed() -> None:
    result = replay_log(log(*LIFE), "log")
    assert (result.kind, result.difference, result.ending, result.total) == ("gateway", None, "", len(LIFE) - 1)


def test_news_of_a_journal_that_was_never_opened() -> None:
    brain = c.GatewayBrain(GatewayRouter(1.0, 16))
    with pytest.raises(DecisionLogError, match="never opened"):
        c.Start(NAME).on(brain)
    opened = log(*LIFE)
    found = replay_log(doctored(opened, lambda calls: calls.__delitem__(0)), "log").difference
    assert found is not None
    assert (found.number, found.call) == (1, "Start of r/0")
    assert "never opened" in found.got


def test_a_tie_broken_otherwise_is_a_difference() -> None:
    views = (VIEW, replace(VIEW, replica=ReplicaId("q")))
    data = log(*(c.RoutePrefill(views, 4, (), ()) for _ in range(3)))
    assert replay_log(data, "log").identical
    found = replay_log(doctored(data, lambda calls: calls.__delitem__(0)), "log").difference
    assert found is not None
    assert (found.number, found.where, found.expected, found.got) == (1, "replica", "'p'", "'q'")
