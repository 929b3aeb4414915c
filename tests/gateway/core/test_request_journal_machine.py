"""A journal in a hostile world: frames are lost, doubled and reordered, instances vanish, fail and refuse.

Whatever happens, the client gets a prefix of the one right output, each token once, and in the end all of it; unless
instances in a row died before they gave a token of it, the last of them alone with it.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.gateway.core import attempts
from serving.gateway.core.journal_commands import AtSource, Need, NeedDecode, NeedPrefill, NeedTrial
from serving.gateway.core.journal_phase import JournalPhase
from serving.gateway.core.request_journal import Commands, SequenceJournal
from serving.ids import BlockHash, NodeId, ReplicaId, SequenceId
from serving.values.jobs import Fail
from serving.values.news import Adopted, FailKind, Leaving, Lost, News, Prefilled, Refused, Tokens
from serving.values.orders import Add, Adopt, Cancel, Order, Release, Send
from serving.values.sequence import (
    BlockExtent,
    FinishReason,
    HandoffTicket,
    PoolUse,
    SamplingParams,
    SequenceSpec,
    TokenLogprobs,
)
from tests.fakes.executor import STOP_TOKEN, fake_token, reference_output

AT_INSTANCE = (JournalPhase.PREFILLING, JournalPhase.MOVING, JournalPhase.DECODING)
PREFILL = [ReplicaId("prefill#0"), ReplicaId("prefill#1")]
DECODE = [ReplicaId("decode#0"), ReplicaId("decode#1")]
POOL = PoolUse(pulled_tokens=2, recomputed_tokens=1, reason="timeout")


@dataclass
class Submission:
    """What an instance knows of one submission."""

    spec: SequenceSpec
    replica: ReplicaId
    ticket: HandoffTicket | None
    aggregated: bool
    adopted: bool = False
    on_trial: bool = False
    held: bool = False
    over: bool = False
    output: list[int] = field(default_factory=list)

    def sample(self) -> tuple[int, FinishReason | None]:
        sampling = self.spec.sampling
        token = fake_token([*self.spec.prompt, *self.output], sampling, len(self.output))
        self.output.append(token)
        if token in sampling.stop_token_ids:
            return token, FinishReason.STOP
        return token, FinishReason.LENGTH if len(self.output) >= sampling.max_tokens else None


def ticket_of(submission: Submission, name: str) -> HandoffTicket:
    """What its instance offers."""
    blocks = (BlockExtent(0, 0, 1, BlockHash(b"")),)
    return HandoffTicket(name, submission.replica, NodeId("n"), "/s", "l", 1, blocks)


class JournalMachine(RuleBasedStateMachine):
    """Frames wait in `frames` until a rule delivers, doubles or drops one."""

    @initialize(
        prompt=st.lists(st.integers(0, 63), min_size=1, max_size=5),
        max_tokens=st.integers(1, 10),
        alone=st.booleans(),
    )
    def build(self, prompt: list[int], max_tokens: int, alone: bool) -> None:
        self.dies_alone = alone
        self.losses = 0
        self.tried = self.told = False
        self.hands_on = 0
        sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=(STOP_TOKEN,), logprobs=0, prompt_logprobs=0)
        self.spec = SequenceSpec(SequenceId("r/0"), tuple(prompt), sampling)
        self.journal = SequenceJournal(self.spec, 0.0, max_attempts=1000)
        self.expected, self.reason = reference_output(self.spec)
        self.frames: list[News] = []
        self.submissions: list[Submission] = []
        self.delivered: list[Tokens] = []
        self.failures: list[Fail] = []
        self.need: Need | None = None
        self.tickets_told: set[str] = set()
        self.tickets_released: set[str] = set()
        self.cancelled = False
        self.carry_out(self.journal.start())

    def carry_out(self, commands: Commands) -> None:
        for command in commands:
            match command:
                case NeedPrefill() | NeedDecode() | NeedTrial():
                    self.need = command
                case Send():
                    self.order(command.replica, command.order)
                case Tokens():
                    assert command.position == sum(len(d.tokens) for d in self.delivered)
                    assert command.sequence_id == self.submissions[-1].spec.sequence_id
                    self.delivered.append(command)
                case Fail():
                    self.failures.append(command)

    def order(self, replica: ReplicaId, order: Order) -> None:
        match order:
            case Add(spec=spec) | Adopt(spec=spec):
                assert self.position_is_known(spec)
                self.told = False
                ticket = order.ticket if isinstance(order, Adopt) else None
                self.submissions.append(Submission(spec, replica, ticket, ticket is not None, output=list(spec.output)))
            case Release():
                self.tickets_released.add(order.ticket_id)
            case Cancel():
                for submission in self.submissions:
                    if submission.spec.sequence_id == order.sequence_id:
                        assert submission.replica == replica
                        submission.over = True

    def position_is_known(self, spec: SequenceSpec) -> bool:
        return spec.output == tuple(token for d in self.delivered for token in d.tokens)

    # ---- the gateway ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.need is not None and not self.journal.done)
    @rule(which=st.integers(0, 1), aggregated=st.booleans(), alone=st.booleans())
    def route(self, which: int, aggregated: bool, alone: bool) -> None:
        need, self.need = self.need, None
        if isinstance(need, NeedPrefill):
            assert need.tokens == len(self.spec.prompt) + len(self.journal.output)
            routed = self.journal.serve_whole if aggregated and alone else self.journal.prefill_routed
            self.carry_out(routed(PREFILL[which], 1.0))
            self.submissions[-1].aggregated = aggregated
            assert self.submissions[-1].spec.whole == (aggregated and alone)
        elif isinstance(need, NeedTrial):
            self.try_alone(need, which)
        elif isinstance(need, NeedDecode) and (alone or need.at_source is AtSource.NOW):
            self.carry_out(self.journal.decode_at_source(1.0))
            assert self.submissions[-1].replica == need.ticket.source
        else:
            self.carry_out(self.journal.decode_routed(DECODE[which], 1.0))

    def try_alone(self, need: NeedTrial, which: int) -> None:
        assert self.losses >= attempts.TRIAL_LOSSES
        assert (need.lost is not None) == self.tried
        if need.lost is not None:
            self.tried = False
            self.losses = attempts.TRIAL_LOSSES
            self.carry_out(self.journal.judged(need.lost, alone=self.dies_alone))
            assert [fail.kind for fail in self.failures] == [FailKind.POISON] * self.dies_alone
            return
        self.carry_out(self.journal.serve_whole(PREFILL[which], 1.0))
        self.submissions[-1].aggregated = self.submissions[-1].on_trial = True

    @rule()
    def cancel(self) -> None:
        if len(self.frames) == 3:  # seldom
            self.cancelled = self.cancelled or not self.journal.done
            self.carry_out(self.journal.cancel())

    # ---- instances -----------------------------------------------------------------------------------------------

    def working(self) -> list[Submission]:
        return [s for s in self.submissions if not s.over and not s.held]

    def tell(self, news: News) -> Commands:
        """A frame arrives. Tokens of whoever decodes: nobody is suspected any more."""
        before, phase = len(self.journal.output), self.journal.phase
        commands = self.journal.on_news(news)
        new = len(self.journal.output) - before
        if isinstance(news, Prefilled):
            self.tickets_told.add(news.ticket.ticket_id)
            self.told = self.told or new > 0
        elif new > (phase is JournalPhase.PREFILLING):  # who does both gives a prompt's token first: it may yet die
            self.losses, self.told = 0, True
        return commands

    @precondition(lambda self: self.working())
    @rule(which=st.integers(0, 100), count=st.integers(1, 3))
    def work(self, which: int, count: int) -> None:
        submission = self.working()[which % len(self.working())]
        name = submission.spec.sequence_id
        if submission.ticket is not None and not submission.adopted:
            submission.adopted = True
            self.frames.append(Adopted(name, submission.ticket.ticket_id))
            return
        position = len(submission.output)
        tokens, reason = [], None
        for _ in range(count if submission.aggregated else 1):
            token, reason = submission.sample()
            tokens.append(token)
            if reason is not None:
                break
        first = position == len(submission.spec.output) and submission.ticket is None
        logprobs = tuple(TokenLogprobs(token, -1.0) for token in tokens)
        asked = submission.spec.sampling.prompt_logprobs is not None and first
        prompt_logprobs = (TokenLogprobs(0, -2.0),) if asked else ()
        submission.over = reason is not None or not submission.aggregated
        cached, pool = (0, POOL) if first else (None, None)
        news = Tokens(name, position, tuple(tokens), logprobs, prompt_logprobs, cached, reason, pool)
        hands_off = reason is None and not submission.aggregated
        self.frames.append(Prefilled(news, ticket_of(submission, f"t{name}")) if hands_off else news)

    @precondition(lambda self: self.working())
    @rule(which=st.integers(0, 100))
    def drain(self, which: int) -> None:
        """The instance wants to be rid of it: a stream is held there, anything else is offered."""
        submission = self.working()[which % len(self.working())]
        name, position = submission.spec.sequence_id, len(submission.output)
        decodes = submission.adopted or (submission.aggregated and position > len(submission.spec.output))
        if not decodes:
            self.frames.append(Leaving(name, handoff=submission.ticket is not None))
            return
        submission.held = True
        self.hands_on += 1
        self.frames.append(Prefilled(Tokens(name, position), ticket_of(submission, f"m{self.hands_on}")))

    @precondition(lambda self: self.working())
    @rule(which=st.integers(0, 100), how=st.sampled_from(["fail", "refuse", "drain", "handoff", "abort"]))
    def fail(self, which: int, how: str) -> None:
        submission = self.working()[which % len(self.working())]
        submission.over = True
        name, position = submission.spec.sequence_id, len(submission.output)
        if how == "fail":
            self.frames.append(Lost(name, "device lost"))
        elif how in ("refuse", "drain") and position == len(submission.spec.output) and not submission.adopted:
            kind = FailKind.OVERLOADED if how == "refuse" else FailKind.DRAINING
            self.frames.append(Refused(name, kind, "full"))
        elif how == "handoff" and submission.ticket is not None and not submission.adopted:
            self.frames.append(Lost(name, "checksum"))
        else:
            self.frames.append(Tokens(name, position, finish_reason=FinishReason.ABORT))

    @rule(replica=st.sampled_from(PREFILL + DECODE), really=st.booleans())
    def lose(self, replica: ReplicaId, really: bool) -> None:
        if really:
            for submission in self.submissions:
                submission.over = submission.over or submission.replica == replica
        suspect = self.journal.replica == replica and self.journal.phase in AT_INSTANCE
        if suspect:
            self.losses = 0 if self.told else self.losses + 1
            self.tried = self.submissions[-1].on_trial and not self.told
        self.carry_out(self.journal.instance_lost(replica))
        assert not suspect or not self.failures, "nobody is condemned before it is known who died beside it"

    @rule()
    def send_fails(self) -> None:
        """The link was down."""
        if self.journal.phase in (JournalPhase.PREFILLING, JournalPhase.MOVING) and self.journal.replica is not None:
            submission = self.submissions[-1]
            if len(submission.output) == len(submission.spec.output) and not submission.adopted:
                submission.over = True
                self.carry_out(self.journal.unsent(self.journal.replica))

    # ---- the link ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.frames)
    @rule(which=st.sampled_from([0, 0, 0, 0, 1, 2]), double=st.booleans())
    def deliver(self, which: int, double: bool) -> None:
        index = which % len(self.frames)
        frame = self.frames[index] if double else self.frames.pop(index)
        self.carry_out(self.tell(frame))

    @precondition(lambda self: self.frames)
    @rule(which=st.integers(0, 10))
    def drop(self, which: int) -> None:
        self.frames.pop(which % len(self.frames))

    # ---- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def exactly_once(self) -> None:
        if not hasattr(self, "journal"):
            return
        tokens = tuple(token for d in self.delivered for token in d.tokens)
        assert tokens == self.expected[: len(tokens)]
        assert list(tokens) == self.journal.output
        assert tuple(lp.token for d in self.delivered for lp in d.logprobs) == tokens
        for index, deliver in enumerate(self.delivered):
            assert (deliver.cached_tokens == 0) == (index == 0)
            assert deliver.pool == (POOL if index == 0 else None)
            assert bool(deliver.prompt_logprobs) == (index == 0)
            assert deliver.finish_reason in (None, self.reason)
        finished = [d for d in self.delivered if d.finish_reason is not None]
        assert len(finished) <= 1
        if finished:
            assert self.journal.done
            assert tokens == self.expected
        if self.journal.done:
            assert self.tickets_told <= self.tickets_released

    def teardown(self) -> None:
        """With a quiet network everything ends well."""
        if not hasattr(self, "journal"):
            return
        for _ in range(500):
            if self.journal.done:
                break
            if self.frames:
                self.deliver(0, False)
            elif self.need is not None:
                self.route(0, False, False)
            elif self.working():
                self.work(len(self.working()) - 1, 1)
            else:  # a frame was lost, and nobody works: the instance would fail on it, or its link break
                self.carry_out(self.tell(Lost(self.submissions[-1].spec.sequence_id, "forgotten")))
        assert self.journal.done
        if not self.cancelled and not (self.dies_alone and self.failures):
            assert self.failures == []
            assert self.delivered[-1].finish_reason is self.reason
        while self.frames or self.working():  # late workers are told to stop as soon as they show themselves
            if self.frames:
                self.deliver(0, False)
            else:
                self.work(0, 1)
        self.exactly_once()


JournalMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestJournalMachine = JournalMachine.TestCase
