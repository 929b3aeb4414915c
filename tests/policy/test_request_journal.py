"""The journal's commands, event by event."""

import pytest
from msgspec.structs import replace

from serving.errors import LedgerError
from serving.ids import BlockHash, NodeId, ReplicaId, SequenceId
from serving.policy.journal_commands import (
    Deliver,
    Fail,
    FailKind,
    NeedDecode,
    NeedPrefill,
    SendAdopt,
    SendCancel,
    SendPrefill,
    SendRelease,
)
from serving.policy.journal_phase import JournalPhase
from serving.policy.request import (
    BlockExtent,
    DraftUse,
    FinishReason,
    HandoffTicket,
    PoolUse,
    SamplingParams,
    SequenceSpec,
    TokenLogprobs,
)
from serving.policy.request_journal import SequenceJournal

P0, P1, D0, D1 = (ReplicaId(name) for name in ("p0", "p1", "d0", "d1"))
SPEC = SequenceSpec(SequenceId("r/0"), (1, 2, 3), SamplingParams(max_tokens=5, prompt_logprobs=1), time_left_s=60.0)
LP = (TokenLogprobs(2, -1.0),)


def sid(number: int) -> SequenceId:
    return SequenceId(f"r/0@{number}")


def ticket(name: str = "t1", source: ReplicaId = P0) -> HandoffTicket:
    return HandoffTicket(name, source, NodeId("n"), "/s", "l", 3, (BlockExtent(0, 0, 3, BlockHash(b"")),))


def at_prefill(max_attempts: int = 3) -> SequenceJournal:
    journal = SequenceJournal(SPEC, 100.0, max_attempts)
    assert journal.start() == (NeedPrefill(3),)
    sent = replace(SPEC, sequence_id=sid(1), time_left_s=50.0)
    assert journal.prefill_routed(P0, 110.0) == (SendPrefill(P0, sent),)
    return journal


def handed_off(max_attempts: int = 3) -> SequenceJournal:
    journal = at_prefill(max_attempts)
    commands = journal.handoff_ready(sid(1), ticket(), 0, (11,), (), LP, 2)
    assert commands == (Deliver((11,), (), LP, 2), NeedDecode(ticket()))
    return journal


def moving(max_attempts: int = 3) -> SequenceJournal:
    journal = handed_off(max_attempts)
    (command,) = journal.decode_routed(D0, 120.0)
    assert isinstance(command, SendAdopt)
    assert (command.replica, command.ticket, command.spec.sequence_id) == (D0, ticket(), sid(2))
    assert (command.spec.output, command.spec.time_left_s) == ((11,), 40.0)
    assert command.spec.sampling.prompt_logprobs is None  # told already
    return journal


def decoding(max_attempts: int = 3) -> SequenceJournal:
    journal = moving(max_attempts)
    assert journal.adopted(sid(2)) == (SendRelease(P0, "t1"),)
    return journal


def test_the_plain_path() -> None:
    journal = decoding()
    assert journal.tokens(sid(2), 1, (12, 13)) == (Deliver((12, 13)),)
    last = journal.tokens(sid(2), 3, (14,), finish_reason=FinishReason.STOP)
    assert last == (Deliver((14,), finish_reason=FinishReason.STOP),)
    assert journal.done
    assert journal.output == [11, 12, 13, 14]
    assert journal.cancel() == ()
    assert journal.instance_lost(D0) == ()
    assert journal.give_up(FailKind.DEADLINE, "late") == ()
    assert journal.tokens(sid(2), 3, (14,), finish_reason=FinishReason.STOP) == ()


def test_one_pool_does_both() -> None:
    journal = at_prefill()
    assert journal.tokens(sid(1), 0, (11,), (), LP, 0) == (Deliver((11,), (), LP, 0),)
    assert journal.phase is JournalPhase.DECODING
    end = journal.tokens(sid(1), 1, (), finish_reason=FinishReason.LENGTH)
    assert end == (Deliver(finish_reason=FinishReason.LENGTH),)


def test_tokens_before_the_adoption_notice_prove_it() -> None:
    journal = moving()
    assert journal.tokens(sid(2), 1, (12,)) == (SendRelease(P0, "t1"), Deliver((12,)))
    assert journal.adopted(sid(2)) == ()


def test_what_was_delivered_is_not_delivered_again() -> None:
    journal = decoding()
    journal.tokens(sid(2), 1, (12, 13))
    assert journal.tokens(sid(2), 1, (12, 13)) == ()
    assert journal.tokens(sid(2), 2, (13, 14), (LP[0], LP[0])) == (Deliver((14,), LP),)


def test_a_gap_leads_to_a_resubmission() -> None:
    journal = decoding()
    assert journal.tokens(sid(2), 2, (13,)) == (SendCancel(D0, sid(2)), NeedPrefill(4, (D0,)))
    (again,) = journal.prefill_routed(P1, 130.0)
    assert isinstance(again, SendPrefill)
    assert (again.spec.sequence_id, again.spec.output, again.spec.time_left_s) == (sid(3), (11,), 30.0)
    assert journal.tokens(sid(2), 1, (12,)) == ()  # already told to stop


def test_a_gap_before_the_end_cancels_nothing() -> None:
    journal = decoding()
    assert journal.tokens(sid(2), 2, (13,), finish_reason=FinishReason.STOP) == (NeedPrefill(4, (D0,)),)


def test_a_gap_before_the_handoff() -> None:
    journal = at_prefill()
    assert journal.handoff_ready(sid(1), ticket(), 1, (11,)) == (SendRelease(P0, "t1"), NeedPrefill(3, (P0,)))


def test_a_lost_instance_is_replaced() -> None:
    journal = at_prefill()
    assert journal.instance_lost(D0) == ()
    assert journal.instance_lost(P0) == (NeedPrefill(3, (P0,), alone=True),)
    journal.prefill_routed(P1, 111.0)
    # The first instance was not lost after all: its handoff is not wanted, its tokens neither.
    assert journal.handoff_ready(sid(1), ticket("old"), 0, (11,)) == (SendRelease(P0, "old"),)
    assert journal.tokens(sid(1), 0, (11,)) == (SendCancel(P0, sid(1)),)
    assert journal.adopted(sid(1)) == ()
    # What is told once is told with the first delivery, whoever makes it.
    assert journal.handoff_ready(sid(2), ticket("new", P1), 0, (11,), (), LP, 0)[0] == Deliver((11,), (), LP, 0)


def test_a_source_lost_before_the_move() -> None:
    journal = handed_off()
    assert journal.instance_lost(P0) == (SendRelease(P0, "t1"), NeedPrefill(4, (P0,)))


def test_a_source_lost_during_the_move_is_for_the_pull_to_tell() -> None:
    journal = moving()
    assert journal.instance_lost(P0) == ()
    assert journal.handoff_failed(sid(2), "gone") == (
        SendRelease(P0, "t1", distrust=True),
        NeedPrefill(4, (P0, D0)),  # either end of the path may be the broken one
    )


def test_a_source_whose_blocks_did_not_arrive_is_not_asked_again_while_there_are_others() -> None:
    """Else a path that breaks on its side fails the request at one target after the other, until it is given up."""
    journal = moving()
    (_, need) = journal.failed(sid(2), "HandoffError: nothing came")
    assert isinstance(need, NeedPrefill)
    assert set(need.exclude) == {P0, D0}
    journal = decoding()
    assert journal.failed(sid(2), "device lost") == (NeedPrefill(4, (D0,)),), "its blocks have long been there"


def test_a_failed_instance_is_replaced_until_attempts_run_out() -> None:
    journal = decoding(max_attempts=2)
    assert journal.failed(sid(2), "device lost") == (NeedPrefill(4, (D0,)),)
    journal.prefill_routed(P1, 130.0)
    assert journal.failed(sid(2), "device lost") == ()
    (fail,) = journal.failed(sid(3), "device lost")
    assert fail == Fail(FailKind.ENGINE, "device lost; given up after 2 attempts")
    assert journal.done


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_an_instance_that_gives_up_is_replaced_after_its_last_tokens(reason: FinishReason) -> None:
    journal = decoding()
    assert journal.tokens(sid(2), 1, (12,), finish_reason=reason) == (Deliver((12,)), NeedPrefill(5, (D0,)))


def test_a_refused_handoff_keeps_its_blocks_and_changes_its_target() -> None:
    journal = moving()
    assert journal.refused(sid(2), FailKind.OVERLOADED, "full") == (NeedDecode(ticket(), (D0,)),)
    (adopt,) = journal.decode_routed(D1, 121.0)
    assert isinstance(adopt, SendAdopt)
    assert adopt.spec.sequence_id == sid(3)
    # The refusal was an error of the link: the first target does adopt, and is told to stop.
    assert journal.adopted(sid(2)) == (SendCancel(D0, sid(2)),)
    assert journal.handoff_ready(sid(1), ticket(), 0, (11,)) == ()  # a duplicate must not release what is pulled


def test_a_handoff_that_an_instance_fails_to_take_for_the_last_time() -> None:
    journal = moving(max_attempts=1)
    assert journal.refused(sid(2), FailKind.ENGINE, "no") == (SendRelease(P0, "t1"), Fail(FailKind.ENGINE, "no"))


def test_a_stream_that_finds_all_instances_full_waits() -> None:
    """It failed as soon as it had asked as often as it may fail, within milliseconds."""
    journal = moving(max_attempts=1)
    assert journal.refused(sid(2), FailKind.OVERLOADED, "full") == (NeedDecode(ticket(), (D0,)),)
    journal.decode_routed(D1, 121.0)
    assert journal.refused(sid(3), FailKind.OVERLOADED, "full") == (NeedDecode(ticket(), (D0, D1)),)
    for number in range(4, 9):
        journal.decode_routed(D0, 122.0)
        full = journal.refused(sid(number), FailKind.OVERLOADED, "full")
        assert full == (NeedDecode(ticket(), (D0, D1), later=True),)
    assert journal.attempts.total == 0


def test_a_stream_that_must_be_computed_again_waits_likewise() -> None:
    journal = decoding()
    assert journal.instance_lost(D0) == (NeedPrefill(4, (D0,), alone=True),)
    for number, later in ((3, False), (4, True), (5, True), (6, True)):
        journal.prefill_routed(P0, 130.0)
        full = journal.refused(sid(number), FailKind.OVERLOADED, "full")
        assert full == (NeedPrefill(4, (D0, P0), alone=True, later=later),)


def test_a_refused_prompt_goes_elsewhere_unless_it_is_invalid() -> None:
    journal = at_prefill()
    assert journal.refused(sid(9), FailKind.OVERLOADED, "full") == ()
    assert journal.refused(sid(1), FailKind.OVERLOADED, "full") == (NeedPrefill(3, (P0,)),)
    journal.prefill_routed(P1, 111.0)
    assert journal.refused(sid(2), FailKind.INVALID, "too long") == (Fail(FailKind.INVALID, "too long"),)
    assert journal.done


def test_the_deadline_ends_it() -> None:
    journal = decoding()
    late = journal.tokens(sid(2), 1, (12,), finish_reason=FinishReason.DEADLINE)
    assert late == (Deliver((12,)), Fail(FailKind.DEADLINE, "the deadline passed at the instance"))
    journal = decoding()
    assert journal.give_up(FailKind.DEADLINE, "over") == (SendCancel(D0, sid(2)), Fail(FailKind.DEADLINE, "over"))


def test_cancel_frees_every_place() -> None:
    assert SequenceJournal(SPEC, 0.0).cancel() == ()
    assert at_prefill().cancel() == (SendCancel(P0, sid(1)),)
    assert handed_off().cancel() == (SendRelease(P0, "t1"),)
    assert moving().cancel() == (SendRelease(P0, "t1"), SendCancel(D0, sid(2)))
    assert decoding().cancel() == (SendCancel(D0, sid(2)),)
    journal = at_prefill()
    journal.cancel()
    assert journal.handoff_ready(sid(1), ticket(), 0, (11,)) == (SendRelease(P0, "t1"),)


def test_news_of_strangers_changes_nothing() -> None:
    journal = decoding()
    for stranger in (sid(7), SequenceId("other/0@2")):
        assert journal.tokens(stranger, 1, (12,)) == ()
        assert journal.adopted(stranger) == ()
        assert journal.failed(stranger, "x") == ()
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
    first, _ = journal.handoff_ready(sid(1), ticket(), 0, (11,), (), LP, 48, use)
    assert first == Deliver((11,), (), LP, 48, pool=use)
    journal.decode_routed(D0, 120.0)
    journal.adopted(sid(2))
    again = journal.tokens(sid(2), 1, (12,), cached_tokens=0, pool=PoolUse(reason="timeout"))
    assert again == (Deliver((12,)),)


def test_what_the_pool_did_survives_an_end_in_the_first_frame() -> None:
    use = PoolUse(pulled_tokens=32)
    for reason in (FinishReason.STOP, FinishReason.DEADLINE, FinishReason.ABORT):
        commands = at_prefill().tokens(sid(1), 0, (11,), (), (), 32, reason, use)
        assert [c.pool for c in commands if isinstance(c, Deliver)] == [use]


def test_what_guesses_were_worth_is_told_with_their_tokens() -> None:
    journal = at_prefill()
    journal.handoff_ready(sid(1), ticket(), 0, (11,), (), LP, 48)
    journal.decode_routed(D0, 120.0)
    journal.adopted(sid(2))
    use = DraftUse(3, 1)
    assert journal.tokens(sid(2), 1, (12, 13), drafts=use) == (Deliver((12, 13), drafts=use),)
    assert journal.tokens(sid(2), 1, (12, 13), drafts=use) == (), "a frame that came twice counts once"
