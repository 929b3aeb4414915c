"""The journal's commands when instances drain, die with a request, or serve another role."""

from msgspec.structs import replace

from serving.gateway.core.journal_commands import AtSource, NeedDecode, NeedPrefill, NeedTrial
from serving.gateway.core.journal_phase import JournalPhase
from serving.gateway.core.request_journal import SequenceJournal
from serving.values.jobs import Fail
from serving.values.news import Adopted, FailKind, Leaving, Lost, Prefilled, Refused, Tokens
from serving.values.orders import Cancel, Release, Send
from serving.values.sequence import SamplingParams
from tests.gateway.core.journal_case import (
    D0,
    D1,
    P0,
    P1,
    SPEC,
    adoption,
    at_prefill,
    decoding,
    handed_off,
    moving,
    prefill,
    sid,
    ticket,
)


def test_a_draining_instance_is_no_failure() -> None:
    journal = at_prefill(max_attempts=1)
    assert journal.on_instance_event(Refused(sid(1), FailKind.DRAINING, "draining")) == (NeedPrefill(3, (P0,)),)
    assert journal.prefill_routed(P1, 111.0)
    assert journal.attempts.total == 0
    journal = moving(max_attempts=1)
    assert journal.on_instance_event(Refused(sid(2), FailKind.DRAINING, "draining")) == (NeedDecode(ticket(), (D0,)),)
    assert journal.attempts.total == 0


def test_what_a_draining_instance_is_to_be_rid_of_goes_elsewhere() -> None:
    journal = at_prefill(max_attempts=1)
    assert journal.on_instance_event(Leaving(sid(1), handoff=False)) == (
        Send(P0, Cancel(sid(1))),
        NeedPrefill(3, (P0,)),
    )
    assert journal.on_instance_event(Leaving(sid(1), handoff=False)) == ()
    assert journal.on_instance_event(Prefilled(Tokens(sid(1), 0, (11,)), ticket("late"))) == (
        Send(P0, Release("late")),
    ), "it was done just now"
    journal = moving(max_attempts=1)
    assert journal.on_instance_event(Leaving(sid(2), handoff=True)) == (
        Send(D0, Cancel(sid(2))),
        NeedDecode(ticket(), (D0,)),
    )
    journal = decoding(max_attempts=1)
    assert journal.on_instance_event(Leaving(sid(2), handoff=False)) == (
        Send(D0, Cancel(sid(2))),
        NeedPrefill(4, (D0,)),
    ), "it was preempted there"
    assert journal.attempts.total == 0
    journal = handed_off()
    assert journal.on_instance_event(Leaving(sid(1), handoff=False)) == (), (
        "it has been computed since: the blocks are held"
    )


def moved_out() -> SequenceJournal:
    """A stream whose decode instance drains and holds it."""
    journal = decoding(max_attempts=2)
    journal.on_instance_event(Tokens(sid(2), 1, (12, 13)))
    moved = ticket("t2", D0)
    assert journal.on_instance_event(Prefilled(Tokens(sid(2), 3), moved)) == (NeedDecode(moved, (), AtSource.IF_ALONE),)
    assert journal.phase is JournalPhase.HANDED_OFF
    return journal


def test_a_stream_moves_from_one_decode_instance_to_another() -> None:
    journal = moved_out()
    _, adopt = adoption(journal.decode_routed(D1, 130.0))
    assert (adopt.spec.output, adopt.ticket.ticket_id) == ((11, 12, 13), "t2")
    assert journal.on_instance_event(Adopted(sid(3), "t2")) == (Send(D0, Release("t2")),)
    assert journal.on_instance_event(Tokens(sid(3), 3, (14,))) == (Tokens(sid(3), 3, (14,)),)
    assert journal.attempts.total == 0


def test_a_stream_that_nobody_takes_goes_on_where_it_is() -> None:
    journal = moved_out()
    where, adopt = adoption(journal.decode_at_source(130.0))
    assert (where, adopt.spec.sequence_id) == (D0, sid(3))
    assert journal.on_instance_event(Leaving(sid(3), handoff=True)) == (), "it is there because there was nobody else"
    assert journal.on_instance_event(Adopted(sid(3), "t2")) == (Send(D0, Release("t2")),)
    assert journal.on_instance_event(Tokens(sid(3), 3, (14,))) == (Tokens(sid(3), 3, (14,)),)
    assert journal.instance_lost(D0) == (NeedPrefill(7, (D0,)),), "the first failure of its life"


def test_a_stream_that_nobody_can_adopt_is_computed_elsewhere() -> None:
    journal = moved_out()
    live = [journal.live_id]
    assert journal.on_instance_event(Leaving(sid(1), handoff=True)) == (), "not that one"
    assert journal.on_instance_event(Leaving(sid(2), handoff=True)) == (Send(D0, Release("t2")), NeedPrefill(6, (D0,)))
    assert journal.phase is JournalPhase.ROUTING
    live.append(journal.live_id)
    assert live == [sid(2), None]
    _, sent = prefill(journal.serve_whole(P0, 130.0))
    assert sent.output == (11, 12, 13)
    assert journal.attempts.total == 0


def test_a_stream_that_is_refused_elsewhere_goes_back() -> None:
    journal = decoding()
    journal.on_instance_event(Prefilled(Tokens(sid(2), 1), ticket("t2", D0)))
    journal.decode_routed(D1, 130.0)
    assert journal.on_instance_event(Refused(sid(3), FailKind.OVERLOADED, "full")) == (
        NeedDecode(ticket("t2", D0), (D1,), AtSource.NOW),
    )
    where, _ = adoption(journal.decode_at_source(131.0))
    assert where == D0
    assert journal.on_instance_event(Refused(sid(4), FailKind.DRAINING, "x")) == (
        Send(D0, Release("t2")),
        NeedPrefill(4, (D1, D0)),
    )
    assert journal.attempts.total == 1, (
        "a source that will not have its own blocks back has lost them: it is computed anew"
    )


def test_the_target_of_a_move_is_lost_and_the_blocks_are_not() -> None:
    journal = moving()
    assert journal.instance_lost(D0) == (NeedDecode(ticket(), (D0,), alone=True),)
    adoption(journal.decode_routed(D1, 121.0))
    assert journal.on_instance_event(Adopted(sid(2), "t1")) == (Send(D0, Cancel(sid(2))),), "it was not lost after all"
    assert journal.on_instance_event(Adopted(sid(3), "t1")) == (Send(P0, Release("t1")),)


def test_a_submission_that_could_not_be_sent_is_nobodys_poison() -> None:
    journal = at_prefill(max_attempts=3)
    for number in range(3):
        assert journal.unsent(P0) == (NeedPrefill(3, (P0,)),)
        assert journal.attempts.in_a_row == number, "the first one is no failure: nobody has seen it"
        assert journal.unsent(P0) == ()
        journal.prefill_routed(P0, 111.0 + number)
    (fail,) = journal.unsent(P0)
    assert isinstance(fail, Fail)
    assert fail.kind is FailKind.UNAVAILABLE


def test_a_host_that_takes_its_instances_along_is_one_failure() -> None:
    journal = decoding(max_attempts=2)
    assert journal.on_instance_event(Tokens(sid(2), 1, (12,))) == (Tokens(sid(2), 1, (12,)),)
    assert journal.instance_lost(D0) == (NeedPrefill(5, (D0,)),)
    journal.prefill_routed(P0, 121.0)
    assert journal.unsent(P0) == (NeedPrefill(5, (D0, P0)),)
    journal.prefill_routed(P1, 121.1)
    assert journal.instance_lost(P1, together=True) == (NeedPrefill(5, (D0, P0, P1), alone=True),)
    assert (journal.attempts.in_a_row, journal.attempts.total) == (1, 3)
    journal.prefill_routed(P0, 122.0)
    (fail,) = journal.unsent(P0)
    assert isinstance(fail, Fail), "it was asked before"


def on_trial(max_attempts: int = 3) -> SequenceJournal:
    """A prompt during which two instances were lost, on a third one."""
    journal = at_prefill(max_attempts)
    assert journal.instance_lost(P0) == (NeedPrefill(3, (P0,), alone=True),)
    journal.prefill_routed(P1, 111.0)
    assert journal.instance_lost(P1) == (NeedTrial(3, (P0, P1)),)
    _, sent = prefill(journal.serve_whole(D0, 112.0))
    assert sent.whole
    return journal


def test_poison_is_given_up_when_it_was_tried_alone() -> None:
    journal = on_trial()
    assert journal.instance_lost(D0) == (NeedTrial(3, (P0, P1, D0), lost=D0),)
    assert journal.attempts.total == 3
    (fail,) = journal.judged(D0, alone=True)
    assert isinstance(fail, Fail)
    assert fail.kind is FailKind.POISON
    assert "3 instances in a row were lost" in fail.reason
    assert journal.done
    assert journal.judged(D0, alone=True) == ()


def test_what_died_with_others_on_trial_is_tried_again_but_not_for_ever() -> None:
    journal = on_trial(max_attempts=3)
    journal.instance_lost(D0)
    assert journal.judged(D0, alone=False) == (NeedTrial(3, (P0, P1, D0)),)
    journal.serve_whole(D1, 113.0)
    journal.instance_lost(D1)
    (fail,) = journal.judged(D1, alone=False)
    assert isinstance(fail, Fail)
    assert fail.kind is FailKind.UNAVAILABLE, "it may be sent again"


def test_a_trial_that_ends_well_clears_it() -> None:
    journal = on_trial()
    assert journal.on_instance_event(Tokens(sid(3), 0, (11,))) == (Tokens(sid(3), 0, (11,)),)
    assert journal.on_instance_event(Tokens(sid(3), 1, (12,))) == (Tokens(sid(3), 1, (12,)),)
    assert journal.instance_lost(D0) == (NeedPrefill(5, (P0, P1, D0)),), "the first loss since"


def test_only_the_loss_of_its_own_instance_tells_against_it() -> None:
    journal = on_trial()
    assert journal.on_instance_event(Leaving(sid(3), handoff=False)) == (
        Send(D0, Cancel(sid(3))),
        NeedTrial(3, (P0, P1, D0)),
    )
    assert journal.instance_lost(D0) == ()
    assert journal.judged(D0, alone=False) == (NeedTrial(3, (P0, P1, D0)),)


def test_what_was_sent_to_a_frozen_instance_did_not_freeze_it() -> None:
    journal = at_prefill(max_attempts=1)  # sent at 110
    assert journal.instance_lost(P0, still_since=109.0) == (NeedPrefill(3, (P0,)),)
    journal.prefill_routed(P1, 111.0)
    assert journal.on_instance_event(Prefilled(Tokens(sid(2), 0, (11,)), ticket("t1", P1)))
    journal.decode_routed(D0, 112.0)
    assert journal.instance_lost(D0, still_since=111.5) == (NeedDecode(ticket("t1", P1), (P0, D0)),)
    assert journal.attempts.total == 0
    journal.decode_routed(D1, 113.0)
    (_, fail) = journal.instance_lost(D1, still_since=113.5)
    assert isinstance(fail, Fail), "this one may have frozen over it"


def test_poison_of_decode_instances_is_given_up_too() -> None:
    journal = moving(max_attempts=20)
    assert journal.instance_lost(D0) == (NeedDecode(ticket(), (D0,), alone=True),)
    journal.decode_routed(D1, 121.0)
    journal.on_instance_event(Adopted(sid(3), "t1"))
    assert journal.instance_lost(D1) == (NeedTrial(4, (D0, D1)),)


def test_a_stream_survives_any_number_of_losses_that_it_did_not_cause() -> None:
    spec = replace(SPEC, sampling=SamplingParams(max_tokens=100))
    journal = SequenceJournal(spec, 0.0, max_attempts=2)
    journal.start()
    for number in range(50):
        journal.prefill_routed(P0, 1.0)
        journal.on_instance_event(Prefilled(Tokens(sid(2 * number + 1), 2 * number, (1,)), ticket(f"t{number}")))
        journal.decode_routed(D0, 1.0)
        journal.on_instance_event(Adopted(sid(2 * number + 2), f"t{number}"))
        told = Tokens(sid(2 * number + 2), 2 * number + 1, (2,))
        assert journal.on_instance_event(told)[0] == told
        commands = journal.instance_lost(D0)
        assert isinstance(commands[-1], NeedPrefill), commands
    assert (journal.attempts.total, len(journal.output)) == (50, 100)


def test_one_instance_may_do_it_all() -> None:
    journal = SequenceJournal(SPEC, 100.0)
    journal.start()
    where, sent = prefill(journal.serve_whole(P0, 110.0))
    assert (where, sent.whole) == (P0, True)
    assert journal.on_instance_event(Tokens(sid(1), 0, (11,))) == (Tokens(sid(1), 0, (11,)),)
    assert journal.instance_lost(P0) == (NeedPrefill(4, (P0,), alone=True),)
    _, again = prefill(journal.prefill_routed(P1, 111.0))
    assert not again.whole, "decode instances may be back"


def test_one_token_each_time_is_no_excuse_for_what_kills_each_instance_at_the_next() -> None:
    journal = SequenceJournal(SPEC, 100.0, max_attempts=10)
    journal.start()
    journal.prefill_routed(P0, 110.0)
    assert journal.on_instance_event(Tokens(sid(1), 0, (11,))) == (Tokens(sid(1), 0, (11,)),)
    assert journal.instance_lost(P0) == (NeedPrefill(4, (P0,), alone=True),)
    journal.prefill_routed(P1, 111.0)
    assert journal.on_instance_event(Tokens(sid(2), 1, (12,))) == (Tokens(sid(2), 1, (12,)),)
    assert journal.instance_lost(P1) == (NeedTrial(5, (P0, P1)),)


def test_a_handoff_is_decoded_at_its_source() -> None:
    journal = handed_off()
    where, adopt = adoption(journal.decode_at_source(120.0))
    assert (where, adopt.ticket) == (P0, ticket())
    assert journal.on_instance_event(Adopted(sid(2), "t1")) == (Send(P0, Release("t1")),), (
        "which has ended there: nothing happens"
    )
    assert journal.on_instance_event(Lost(sid(2), "expired")) == (NeedPrefill(4, (P0,)),)


def test_an_instance_that_brought_tokens_is_lost_whatever_its_last_report_says() -> None:
    """Its report may be older than the submission, although it has worked on it since."""
    for brings, counted in ((True, 1), (False, 0)):
        journal = decoding()
        if brings:
            journal.on_instance_event(Tokens(sid(2), 1, (12,)))
        assert journal.instance_lost(D0, still_since=0.0)
        assert journal.attempts.total == counted
