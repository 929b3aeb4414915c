"""What counts against a sequence, and what it is forgiven."""

from serving.gateway.core.attempts import TRIAL_LOSSES, Attempts
from serving.ids import ReplicaId
from serving.values.news import FailKind

D0, D1 = ReplicaId("d0"), ReplicaId("d1")


def test_failures_in_a_row_are_counted() -> None:
    attempts = Attempts(3)
    outcome = []
    for _ in range(3):
        attempts.sent()
        outcome.append(attempts.failed(D0))
    assert outcome == [True, True, False]
    assert (attempts.in_a_row, attempts.total, attempts.excluded) == (3, 3, [D0])


def test_tokens_of_a_decode_clear_the_record() -> None:
    attempts = Attempts(2)
    for _ in range(50):
        attempts.sent()
        attempts.progress(decoding=True)
        assert not attempts.lost()
        assert attempts.failed(D1)
    assert (attempts.in_a_row, attempts.losses, attempts.total) == (1, 0, 50)


def test_the_token_of_a_prompt_does_not_excuse_the_next_instance() -> None:
    attempts = Attempts(3)
    outcome = []
    for _ in range(3):
        attempts.sent()
        attempts.progress(decoding=False)  # prefill went well
        attempts.sent()
        outcome.append(attempts.failed(D0))  # decode did not
    assert outcome == [True, True, False]


def test_it_does_excuse_the_instance_that_gave_it() -> None:
    attempts = Attempts(2)
    for _ in range(5):
        attempts.sent()
        attempts.progress(decoding=False)
        assert not attempts.lost()
        assert attempts.failed(D0)


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
    assert "3 instances in a row, d1 the last of them" in reason


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


def test_a_stream_may_be_near_by_twice() -> None:
    attempts = Attempts(20)
    attempts.sent()
    attempts.progress(decoding=True)
    outcome = [(attempts.lost(), attempts.on_trial)]
    for _ in range(2):
        attempts.sent()
        outcome.append((attempts.lost(), attempts.on_trial))
    assert outcome == [(False, False), (False, False), (False, True)]


def test_an_instance_is_nobodys_own_before_a_trial_or_once_it_gave_a_token() -> None:
    attempts = Attempts(20)
    attempts.sent()
    attempts.sent_alone()  # it serves whole prompts, for want of decode instances
    assert not attempts.lost()
    attempts.sent()
    assert not attempts.lost()
    attempts.sent()
    attempts.sent_alone()
    attempts.progress(decoding=False)
    assert not attempts.lost()
    assert not attempts.on_trial


def test_a_loss_after_tokens_clears_the_suspicion() -> None:
    attempts = Attempts(20)
    attempts.sent()
    assert not attempts.lost()
    attempts.sent()
    attempts.progress(decoding=True)
    attempts.sent()  # it moved on
    assert not attempts.lost(), "the first since there were tokens"


def test_an_instance_is_avoided_once() -> None:
    attempts = Attempts(3)
    for replica in (D0, None, D1, D0):
        attempts.avoid(replica)
    assert attempts.excluded == [D0, D1]
    assert attempts.spent("full") == "full; given up after 0 attempts"
