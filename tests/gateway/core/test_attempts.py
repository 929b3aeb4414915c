"""Which failures count against a sequence, and which are reset."""

import pytest

from serving.gateway.core.attempts import TRIAL_LOSSES, Attempts
from serving.ids import ReplicaId
from serving.values.news import FailKind

D0, D1 = ReplicaId("d0"), ReplicaId("d1")


def play(attempts: Attempts, events: str) -> None:
    """Events of a sequence; none of them implies that the instance was at fault."""
    for event in events.split():
        match event:
            case "sent":
                attempts.sent()
            case "alone":
                attempts.sent_alone()
            case "lost":
                assert not attempts.lost()
            case _:
                attempts.progress(decoding=event == "decoded")


@pytest.mark.parametrize(
    ("most", "each", "rounds", "outcome"),
    [
        (3, "", 3, [True, True, False]),  # failures in a row are counted
        (2, "decoded", 50, [True] * 50),  # tokens of a decode clear the record
        (3, "prefilled sent", 3, [True, True, False]),  # prefill went well, decode did not
        (2, "prefilled", 5, [True] * 5),  # the token of a prompt clears the instance that produced it
    ],
)
def test_failures_in_a_row_are_counted(most: int, each: str, rounds: int, outcome: list[bool]) -> None:
    attempts = Attempts(most)
    found = []
    for _ in range(rounds):
        attempts.sent()
        play(attempts, each)
        found.append(attempts.failed(D0))
    assert found == outcome
    assert attempts.total == rounds


def test_two_instances_lost_without_a_token_lead_to_a_trial_which_tells_the_cause() -> None:
    attempts = Attempts(20)
    for on_trial in (False, True):
        attempts.sent()
        assert not attempts.lost(), "it was not its own"
        assert attempts.on_trial is on_trial
    attempts.sent()
    attempts.sent_alone()
    assert attempts.lost()
    kind, reason = attempts.judged(D1, alone=True) or (None, "")
    assert kind is FailKind.POISON
    assert "3 instances in a row were lost" in reason


def test_what_did_not_die_alone_on_trial_is_tried_again_until_attempts_run_out() -> None:
    attempts = Attempts(2)
    for _ in range(TRIAL_LOSSES):
        attempts.sent()
        attempts.lost()
    for verdict in (None, FailKind.UNAVAILABLE):
        attempts.sent()
        attempts.sent_alone()
        assert attempts.lost()
        found = attempts.judged(D0, alone=False)
        assert (found and found[0]) is verdict
        assert attempts.on_trial


@pytest.mark.parametrize(
    ("events", "on_trial"),
    [
        ("sent decoded lost sent lost", False),  # a stream may be near by twice
        ("sent decoded lost sent lost sent lost", True),
        ("sent alone lost sent lost sent alone prefilled lost", False),  # it serves whole prompts, and produced a token
        ("sent lost sent decoded sent lost", False),  # a loss after tokens is the first since
    ],
)
def test_instances_that_are_lost_lead_to_a_trial(events: str, on_trial: bool) -> None:
    attempts = Attempts(20)
    play(attempts, events)
    assert attempts.on_trial is on_trial


def test_an_instance_is_avoided_once() -> None:
    attempts = Attempts(3)
    for replica in (D0, None, D1, D0):
        attempts.avoid(replica)
    assert attempts.excluded == [D0, D1]
    assert attempts.spent("full") == "full; given up after 0 attempts"
