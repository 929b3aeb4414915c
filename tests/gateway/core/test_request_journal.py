"""The journal's commands, event by event."""

from collections.abc import Callable

import pytest

from serving.errors import LedgerError
from serving.gateway.core.journal_commands import AtSource, NeedDecode, NeedPrefill
from serving.gateway.core.journal_phase import JournalPhase
from serving.gateway.core.request_journal import Commands, SequenceJournal
from serving.ids import SequenceId
from serving.values.jobs import Fail
from serving.values.news import Adopted, FailKind, Lost, News, Prefilled, Refused, Tokens
from serving.values.orders import Cancel, Release, Send
from serving.values.sequence import DraftUse, FinishReason, PoolUse
from tests.gateway.core.journal_case import (
    D0,
    D1,
    LP,
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


def test_the_plain_path() -> None:
    journal = decoding()
    assert journal.on_instance_event(Tokens(sid(2), 1, (12, 13))) == (Tokens(sid(2), 1, (12, 13)),)
    last = journal.on_instance_event(Tokens(sid(2), 3, (14,), finish_reason=FinishReason.STOP))
    assert last == (Tokens(sid(2), 3, (14,), finish_reason=FinishReason.STOP),)
    assert journal.done
    assert journal.output == [11, 12, 13, 14]
    assert journal.cancel() == ()
    assert journal.instance_lost(D0) == ()
    assert journal.give_up(FailKind.DEADLINE, "late") == ()
    assert journal.on_instance_event(Tokens(sid(2), 3, (14,), finish_reason=FinishReason.STOP)) == ()


def test_one_pool_does_both() -> None:
    journal = at_prefill()
    assert journal.on_instance_event(Tokens(sid(1), 0, (11,), (), LP, 0)) == (Tokens(sid(1), 0, (11,), (), LP, 0),)
    assert journal.phase is JournalPhase.DECODING
    end = journal.on_instance_event(Tokens(sid(1), 1, (), finish_reason=FinishReason.LENGTH))
    assert end == (Tokens(sid(1), 1, finish_reason=FinishReason.LENGTH),)


def test_tokens_before_the_adoption_notice_prove_it() -> None:
    journal = moving()
    assert journal.on_instance_event(Tokens(sid(2), 1, (12,))) == (Send(P0, Release("t1")), Tokens(sid(2), 1, (12,)))
    assert journal.on_instance_event(Adopted(sid(2), "t1")) == ()


def test_what_was_delivered_is_not_delivered_again() -> None:
    journal = decoding()
    journal.on_instance_event(Tokens(sid(2), 1, (12, 13)))
    assert journal.on_instance_event(Tokens(sid(2), 1, (12, 13))) == ()
    assert journal.on_instance_event(Tokens(sid(2), 2, (13, 14), (LP[0], LP[0]))) == (Tokens(sid(2), 3, (14,), LP),)


def test_a_gap_leads_to_a_resubmission() -> None:
    journal = decoding()
    assert journal.on_instance_event(Tokens(sid(2), 2, (13,))) == (Send(D0, Cancel(sid(2))), NeedPrefill(4, (D0,)))
    _, again = prefill(journal.prefill_routed(P1, 130.0))
    assert (again.sequence_id, again.output, again.time_left_s) == (sid(3), (11,), 30.0)
    assert journal.on_instance_event(Tokens(sid(2), 1, (12,))) == ()  # already cancelled


def test_a_lost_instance_is_replaced() -> None:
    journal = at_prefill()
    assert journal.instance_lost(D0) == ()
    assert journal.instance_lost(P0) == (NeedPrefill(3, (P0,), alone=True),)
    journal.prefill_routed(P1, 111.0)
    # The first instance was not lost after all: neither its handoff nor its tokens are wanted.
    assert journal.on_instance_event(Prefilled(Tokens(sid(1), 0, (11,)), ticket("old"))) == (Send(P0, Release("old")),)
    assert journal.on_instance_event(Tokens(sid(1), 0, (11,))) == (Send(P0, Cancel(sid(1))),)
    assert journal.on_instance_event(Adopted(sid(1), "t1")) == ()
    # One-time data is reported with the first delivery, from any instance.
    first = Tokens(sid(2), 0, (11,), (), LP, 0)
    assert journal.on_instance_event(Prefilled(first, ticket("new", P1)))[0] == first


def test_a_source_lost_before_the_move() -> None:
    journal = handed_off()
    assert journal.instance_lost(P0) == (Send(P0, Release("t1")), NeedPrefill(4, (P0,)))


def test_a_source_lost_during_the_move_is_for_the_pull_to_tell() -> None:
    journal = moving()
    assert journal.instance_lost(P0) == ()
    assert journal.on_instance_event(Lost(sid(2), "gone")) == (
        Send(P0, Release("t1", distrust=True)),
        NeedPrefill(4, (P0, D0)),  # either end of the path may be the broken one
    )


def test_a_source_whose_blocks_did_not_arrive_is_not_asked_again_while_there_are_others() -> None:
    """Otherwise a path that fails at the source makes the request fail at one target after the other."""
    journal = moving()
    (_, need) = journal.on_instance_event(Lost(sid(2), "HandoffError: nothing came"))
    assert isinstance(need, NeedPrefill)
    assert set(need.exclude) == {P0, D0}
    journal = decoding()
    assert journal.on_instance_event(Lost(sid(2), "device lost")) == (NeedPrefill(4, (D0,)),), (
        "its blocks have long been there"
    )


def test_a_failed_instance_is_replaced_until_attempts_run_out() -> None:
    journal = decoding(max_attempts=2)
    assert journal.on_instance_event(Lost(sid(2), "device lost")) == (NeedPrefill(4, (D0,)),)
    journal.prefill_routed(P1, 130.0)
    assert journal.on_instance_event(Lost(sid(2), "device lost")) == ()
    (fail,) = journal.on_instance_event(Lost(sid(3), "device lost"))
    assert fail == Fail(FailKind.ENGINE, "device lost; given up after 2 attempts")
    assert journal.done


def test_a_refused_handoff_keeps_its_blocks_and_changes_its_target() -> None:
    journal = moving()
    assert journal.on_instance_event(Refused(sid(2), FailKind.OVERLOADED, "full")) == (NeedDecode(ticket(), (D0,)),)
    _, adopt = adoption(journal.decode_routed(D1, 121.0))
    assert adopt.spec.sequence_id == sid(3)
    # The refusal was an error of the link: the first target does adopt, and gets a cancel.
    assert journal.on_instance_event(Adopted(sid(2), "t1")) == (Send(D0, Cancel(sid(2))),)
    # A duplicate must not release what is pulled.
    assert journal.on_instance_event(Prefilled(Tokens(sid(1), 0, (11,)), ticket())) == ()


def test_a_handoff_that_an_instance_fails_to_take_for_the_last_time() -> None:
    journal = moving(max_attempts=1)
    assert journal.on_instance_event(Refused(sid(2), FailKind.ENGINE, "no")) == (
        Send(P0, Release("t1")),
        Fail(FailKind.ENGINE, "no"),
    )


def test_a_stream_that_finds_all_instances_full_waits() -> None:
    """Such a stream failed within milliseconds, after its maximum number of attempts."""
    journal = moving(max_attempts=1)
    assert journal.on_instance_event(Refused(sid(2), FailKind.OVERLOADED, "full")) == (NeedDecode(ticket(), (D0,)),)
    journal.decode_routed(D1, 121.0)
    assert journal.on_instance_event(Refused(sid(3), FailKind.OVERLOADED, "full")) == (NeedDecode(ticket(), (D0, D1)),)
    for number in range(4, 9):
        journal.decode_routed(D0, 122.0)
        full = journal.on_instance_event(Refused(sid(number), FailKind.OVERLOADED, "full"))
        assert full == (NeedDecode(ticket(), (D0, D1), later=True),)
    assert journal.attempts.total == 0


def test_a_stream_that_must_be_computed_again_waits_likewise() -> None:
    journal = decoding()
    assert journal.instance_lost(D0) == (NeedPrefill(4, (D0,), alone=True),)
    for number, later in ((3, False), (4, True), (5, True), (6, True)):
        journal.prefill_routed(P0, 130.0)
        full = journal.on_instance_event(Refused(sid(number), FailKind.OVERLOADED, "full"))
        assert full == (NeedPrefill(4, (D0, P0), alone=True, later=later),)


def test_a_refused_prompt_goes_elsewhere_unless_it_is_invalid() -> None:
    journal = at_prefill()
    assert journal.on_instance_event(Refused(sid(9), FailKind.OVERLOADED, "full")) == ()
    assert journal.on_instance_event(Refused(sid(1), FailKind.OVERLOADED, "full")) == (NeedPrefill(3, (P0,)),)
    journal.prefill_routed(P1, 111.0)
    assert journal.on_instance_event(Refused(sid(2), FailKind.INVALID, "too long")) == (
        Fail(FailKind.INVALID, "too long"),
    )
    assert journal.done


NO_TOKEN = "no token can follow that the request's grammar or its token lists allow"
HANDED_ON = NeedDecode(ticket("t2", D0), (), AtSource.IF_ALONE)
ONE_STEP: dict[str, tuple[Callable[[], SequenceJournal], News, Commands]] = {
    "a gap before the end cancels nothing": (
        decoding, Tokens(sid(2), 2, (13,), finish_reason=FinishReason.STOP), (NeedPrefill(4, (D0,)),),
    ),
    "a gap before the handoff": (
        at_prefill, Prefilled(Tokens(sid(1), 1, (11,)), ticket()), (Send(P0, Release("t1")), NeedPrefill(3, (P0,))),
    ),
    "a gap before a stream is handed on": (
        decoding, Prefilled(Tokens(sid(2), 3), ticket("t2", D0)), (Send(D0, Release("t2")), NeedPrefill(4, (D0,))),
    ),
    "a stream handed on before its adoption was told": (
        moving, Prefilled(Tokens(sid(2), 1), ticket("t2", D0)), (Send(P0, Release("t1")), HANDED_ON),
    ),
    "an instance that gives up is replaced after its last tokens": (
        decoding, Tokens(sid(2), 1, (12,), finish_reason=FinishReason.ABORT),
        (Tokens(sid(2), 1, (12,)), NeedPrefill(5, (D0,))),
    ),
    "and one that failed": (
        decoding, Tokens(sid(2), 1, (12,), finish_reason=FinishReason.ERROR),
        (Tokens(sid(2), 1, (12,)), NeedPrefill(5, (D0,))),
    ),
    "a grammar that allows no token ends it without another try": (
        decoding, Tokens(sid(2), 1, finish_reason=FinishReason.GRAMMAR), (Fail(FailKind.INVALID, NO_TOKEN),),
    ),
    "the deadline ends it": (
        decoding, Tokens(sid(2), 1, (12,), finish_reason=FinishReason.DEADLINE),
        (Tokens(sid(2), 1, (12,)), Fail(FailKind.DEADLINE, "the deadline passed at the instance")),
    ),
}  # fmt: skip
"""The journal, its inputs, and its commands."""


@pytest.mark.parametrize("name", ONE_STEP)
def test_one_step(name: str) -> None:
    make, news, commands = ONE_STEP[name]
    journal = make()
    assert journal.on_instance_event(news) == commands
    assert journal.done == isinstance(commands[-1], Fail)


def test_a_deadline_that_passed_here_cancels_it_there() -> None:
    assert decoding().give_up(FailKind.DEADLINE, "over") == (Send(D0, Cancel(sid(2))), Fail(FailKind.DEADLINE, "over"))


def test_a_grammar_that_is_too_large_is_said_to_be() -> None:
    (last,) = decoding().on_instance_event(Tokens(sid(2), 1, finish_reason=FinishReason.GRAMMAR_LIMIT))
    assert isinstance(last, Fail)
    assert last.kind is FailKind.INVALID
    assert "too large for this server" in last.reason


def test_cancel_frees_every_place() -> None:
    assert SequenceJournal(SPEC, 0.0).cancel() == ()
    assert at_prefill().cancel() == (Send(P0, Cancel(sid(1))),)
    assert handed_off().cancel() == (Send(P0, Release("t1")),)
    assert moving().cancel() == (Send(P0, Release("t1")), Send(D0, Cancel(sid(2))))
    assert decoding().cancel() == (Send(D0, Cancel(sid(2))),)
    journal = at_prefill()
    journal.cancel()
    assert journal.on_instance_event(Prefilled(Tokens(sid(1), 0, (11,)), ticket())) == (Send(P0, Release("t1")),)


def test_news_of_strangers_changes_nothing() -> None:
    journal = decoding()
    for stranger in (sid(7), SequenceId("other/0@2")):
        assert journal.on_instance_event(Tokens(stranger, 1, (12,))) == ()
        assert journal.on_instance_event(Adopted(stranger, "t1")) == ()
        assert journal.on_instance_event(Lost(stranger, "x")) == ()
    assert journal.phase is JournalPhase.DECODING


def test_routing_out_of_turn_is_our_bug() -> None:
    journal = at_prefill()
    with pytest.raises(LedgerError, match="is prefilling, not routing"):
        journal.prefill_routed(P1, 0.0)
    with pytest.raises(LedgerError, match="is prefilling, not handed off"):
        journal.decode_routed(D0, 0.0)
    with pytest.raises(LedgerError, match="is prefilling, not handed off"):
        journal.decode_at_source(0.0)
    with pytest.raises(LedgerError, match="is prefilling, not routing"):
        journal.serve_whole(P1, 0.0)


def test_what_the_pool_did_is_told_once() -> None:
    use = PoolUse(pulled_tokens=32, recomputed_tokens=16, reason="checksum")
    journal = at_prefill()
    first, _ = journal.on_instance_event(Prefilled(Tokens(sid(1), 0, (11,), (), LP, 48, pool=use), ticket()))
    assert first == Tokens(sid(1), 0, (11,), (), LP, 48, pool=use)
    journal.decode_routed(D0, 120.0)
    journal.on_instance_event(Adopted(sid(2), "t1"))
    again = journal.on_instance_event(Tokens(sid(2), 1, (12,), cached_tokens=0, pool=PoolUse(reason="timeout")))
    assert again == (Tokens(sid(2), 1, (12,)),)


def test_a_prompt_computed_again_delivers_and_tells_only_what_is_new() -> None:
    journal = at_prefill()
    first = Tokens(sid(1), 0, (11,), (LP[0],), LP, 48, waited_s=0.5)
    assert journal.on_instance_event(Prefilled(first, ticket()))[0] == first
    journal.instance_lost(P0)
    journal.prefill_routed(P1, 120.0)
    again = Tokens(sid(2), 0, (11, 12), (LP[0], LP[0]), LP, 16, waited_s=0.7)
    told, _ = journal.on_instance_event(Prefilled(again, ticket("t2", P1)))
    assert told == Tokens(sid(2), 1, (12,), (LP[0],))


def test_what_the_pool_did_survives_an_end_in_the_first_frame() -> None:
    use = PoolUse(pulled_tokens=32)
    for reason in (FinishReason.STOP, FinishReason.DEADLINE, FinishReason.ABORT):
        commands = at_prefill().on_instance_event(Tokens(sid(1), 0, (11,), (), (), 32, reason, use))
        assert [c.pool for c in commands if isinstance(c, Tokens)] == [use]


def test_what_guesses_were_worth_is_told_with_their_tokens() -> None:
    journal = at_prefill()
    journal.on_instance_event(Prefilled(Tokens(sid(1), 0, (11,), (), LP, 48), ticket()))
    journal.decode_routed(D0, 120.0)
    journal.on_instance_event(Adopted(sid(2), "t1"))
    use = DraftUse(3, 1)
    assert journal.on_instance_event(Tokens(sid(2), 1, (12, 13), drafts=use)) == (
        Tokens(sid(2), 1, (12, 13), drafts=use),
    )
    assert journal.on_instance_event(Tokens(sid(2), 1, (12, 13), drafts=use)) == (), (
        "a frame that came twice counts once"
    )
