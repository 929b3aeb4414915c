"""A journal at each stage of its normal path."""

from msgspec.structs import replace

from serving.gateway.core.journal_commands import NeedDecode, NeedPrefill
from serving.gateway.core.request_journal import Commands, SequenceJournal
from serving.ids import BlockHash, NodeId, ReplicaId, SequenceId
from serving.values.news import Adopted, Prefilled, Tokens
from serving.values.orders import Add, Adopt, Release, Send
from serving.values.sequence import BlockExtent, HandoffTicket, SamplingParams, SequenceSpec, TokenLogprobs

P0, P1, D0, D1 = (ReplicaId(name) for name in ("p0", "p1", "d0", "d1"))
SPEC = SequenceSpec(SequenceId("r/0"), (1, 2, 3), SamplingParams(max_tokens=5, prompt_logprobs=1), time_left_s=60.0)
LP = (TokenLogprobs(2, -1.0),)


def sid(number: int) -> SequenceId:
    return SequenceId(f"r/0@{number}")


def ticket(name: str = "t1", source: ReplicaId = P0) -> HandoffTicket:
    return HandoffTicket(name, source, NodeId("n"), "/s", "l", 3, (BlockExtent(0, 0, 3, BlockHash(b"")),))


def prefill(commands: Commands) -> tuple[ReplicaId, SequenceSpec]:
    """Target of the prefill; asserts that this is the only effect."""
    (command,) = commands
    assert isinstance(command, Send)
    assert isinstance(command.order, Add)
    return command.replica, command.order.spec


def adoption(commands: Commands) -> tuple[ReplicaId, Adopt]:
    """Target of the handoff; asserts that this is the only effect."""
    (command,) = commands
    assert isinstance(command, Send)
    assert isinstance(command.order, Adopt)
    return command.replica, command.order


def at_prefill(max_attempts: int = 3) -> SequenceJournal:
    journal = SequenceJournal(SPEC, 100.0, max_attempts)
    assert journal.start() == (NeedPrefill(3),)
    sent = replace(SPEC, sequence_id=sid(1), time_left_s=50.0)
    assert journal.prefill_routed(P0, 110.0) == (Send(P0, Add(sent)),)
    return journal


def handed_off(max_attempts: int = 3) -> SequenceJournal:
    journal = at_prefill(max_attempts)
    commands = journal.on_instance_event(Prefilled(Tokens(sid(1), 0, (11,), (), LP, 2), ticket()))
    assert commands == (Tokens(sid(1), 0, (11,), (), LP, 2), NeedDecode(ticket()))
    return journal


def moving(max_attempts: int = 3) -> SequenceJournal:
    journal = handed_off(max_attempts)
    replica, adopt = adoption(journal.decode_routed(D0, 120.0))
    assert (replica, adopt.ticket, adopt.spec.sequence_id) == (D0, ticket(), sid(2))
    assert (adopt.spec.output, adopt.spec.time_left_s) == ((11,), 40.0)
    assert adopt.spec.sampling.prompt_logprobs is None  # already reported
    return journal


def decoding(max_attempts: int = 3) -> SequenceJournal:
    journal = moving(max_attempts)
    assert journal.on_instance_event(Adopted(sid(2), "t1")) == (Send(P0, Release("t1")),)
    return journal
