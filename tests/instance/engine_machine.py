"""A random life of four engines: every ledger balances after every event, every token is right, every log replays."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.errors import EngineError, HandoffError
from serving.ids import ReplicaId, SequenceId
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.tools.replay import replay_log
from serving.values.layer_split import LayerSplit
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.fakes.executor import STOP_TOKEN, reference_output, reference_prompt_logprobs
from tests.instance.cluster import Cluster, Record
from tests.instance.decision_logs import MemoryLog
from tests.instance.fake_instance import FakeInstance

MAX_LEN = 40
REPLICAS = ["prefill#0", "prefill#1", "decode#0", "decode#1"]

samplings = st.builds(
    SamplingParams,
    max_tokens=st.integers(0, 14),
    min_tokens=st.integers(0, 3),
    seed=st.integers(0, 2),
    top_k=st.sampled_from([0, 1]),
    stop_token_ids=st.sampled_from([(), (STOP_TOKEN,), (3, 9, 27)]),
    logprobs=st.sampled_from([None, 0]),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
)
stems = st.sampled_from(
    [(), (1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 4, 5, 60, 61, 62, 63, 1, 2, 3, 4), (5, 5, 5, 5) * 4]
)
prompts = st.builds(lambda stem, tail: (*stem, *tail), stems, st.lists(st.integers(0, 63), min_size=1, max_size=12))


splits = st.builds(LayerSplit, full=st.integers(0, 2), sliding=st.integers(1, 2), window=st.integers(1, 13))
plain_draws = st.builds(
    SamplingParams,
    max_tokens=st.integers(5, 30),
    seed=st.integers(0, 2),
    stop_token_ids=st.sampled_from([(), (STOP_TOKEN,)]),
)
"""Long answers without anything that forbids guesses."""


@dataclass(frozen=True)
class Life:
    """Four engines that differ only in their roles.

    Args:
        guesses: every sequence drafts, so draft caches must have no gaps.
        token_s: cost of a fed token; the highest one makes drafting stop.
    """

    base: EngineSettings
    blocks: int
    disaggregated: bool
    looks_ahead: bool
    guesses: bool
    guess_percent: int
    token_s: float


@st.composite
def lives(draw: st.DrawFn, kind: str) -> Life:
    """Engines of one kind: with any sequences, with drafting sequences and few blocks, or with sliding windows."""
    guesses, split = kind == "guessing", draw(splits) if kind == "windowed" else None
    step_tokens, reuse, cache_decoded = draw(st.integers(4, 20)), draw(st.booleans()), draw(st.booleans())
    store_blocks = draw(st.sampled_from([None, 0, 3, 100]))
    drafts = draw(st.integers(1, 3) if guesses else st.sampled_from([0, 0, 0, 1, 2, 3])) if split is None else 0
    base = EngineSettings(
        block_tokens=4,
        max_step_tokens=step_tokens,
        max_sequences=draw(st.integers(1, 4)),
        max_waiting=6,
        max_model_len=MAX_LEN,
        watermark_blocks=0 if guesses else draw(st.integers(0, 2)),
        handoff_lease_s=3.0,
        prompt_delay_s=draw(st.sampled_from([0.0, 50.0, 5000.0])),
        prefix_reuse=reuse,
        cache_decoded=cache_decoded,
        pool=reuse and store_blocks is not None,
        store_decoded=cache_decoded,
        max_store_blocks=store_blocks or 0,
        draft_tokens=drafts,
        speculation=drafts > 0,
        lookup_tokens=0 if drafts else draw(st.sampled_from([0, 4])),
        split=split,
    )
    if split is not None:
        rows = MAX_LEN // 4
        most_sliding = min(rows, -(-(split.window - 1 + step_tokens) // 4) + 1)
        blocks = split.full * rows + split.sliding * most_sliding + draw(st.integers(0, 30))
    else:
        blocks = draw(st.integers(10, 16) if guesses else st.integers(12, 40))
    return Life(
        base,
        blocks,
        disaggregated=draw(st.booleans()),
        looks_ahead=draw(st.booleans()),
        guesses=guesses,
        guess_percent=draw(st.sampled_from([0, 50, 90, 100])),
        token_s=draw(st.sampled_from([0.0, 0.0001, 0.01])),
    )


class EngineMachine(RuleBasedStateMachine):
    """Adds, cancels, steps, failures, pulls and time in any order; engines are recorded, and replayed at the end."""

    @initialize(life=st.sampled_from(["mixed", "guessing", "windowed"]).flatmap(lives))
    def build(self, life: Life) -> None:
        roles = [EngineRole.PREFILL] * 2 + [EngineRole.DECODE] * 2
        if not life.disaggregated:
            roles = [EngineRole.AGGREGATED] * 4
        named = {name: replace(life.base, role=role) for name, role in zip(REPLICAS, roles, strict=True)}
        self.life, self.cluster = life, Cluster(named, life.blocks, max_attempts=10_000)
        self.cluster.looks_ahead = life.looks_ahead
        for instance in self.cluster.instances.values():
            instance.executor.guess_percent = life.guess_percent
            instance.executor.token_s = life.token_s
            instance.executor.whole_drafts = life.guesses
            assert life.base.split is None or instance.engine.max_len == MAX_LEN
        self.logs = [MemoryLog(instance.engine) for instance in self.cluster.instances.values()]
        self.count = 0

    def instance(self, index: int) -> FakeInstance:
        return self.cluster.instances[ReplicaId(REPLICAS[index])]

    @rule(
        prompt=prompts,
        samplings=st.tuples(samplings, plain_draws),
        priority=st.integers(0, 1),
        salt=st.sampled_from([b"", b"tenant"]),
    )
    def submit(
        self, prompt: tuple[int, ...], samplings: tuple[SamplingParams, SamplingParams], priority: int, salt: bytes
    ) -> None:
        if sum(not r.journal.done for r in self.cluster.records.values()) >= 6:
            return  # stay below max_waiting: refusals have their own test
        self.count += 1
        name = SequenceId(f"r/{self.count}")
        self.cluster.submit(SequenceSpec(name, prompt, samplings[self.life.guesses], priority=priority, salt=salt))

    @rule(index=st.integers(0, 3))
    def begin(self, index: int) -> None:
        self.instance(index).begin_step(self.cluster.now)
        self.cluster.carry_news()

    @rule(index=st.integers(0, 3))
    def foresee(self, index: int) -> None:
        self.instance(index).foresee(self.cluster.now)

    @rule(index=st.integers(0, 3))
    def decode_on(self, index: int) -> None:
        """Run some steps, each prepared while the previous one runs, if possible."""
        for _ in range(4):
            self.begin(index)
            self.foresee(index)
            self.end(index)

    @rule(index=st.integers(0, 3))
    def end(self, index: int) -> None:
        self.instance(index).end_step(self.cluster.now)
        self.cluster.carry_news()

    @rule(index=st.integers(0, 3))
    def fail(self, index: int) -> None:
        self.instance(index).end_step(self.cluster.now, EngineError("device lost"))
        self.cluster.carry_news()

    @rule(index=st.integers(2, 3), which=st.integers(0, 5), fails=st.booleans())
    def pull(self, index: int, which: int, fails: bool) -> None:
        instance = self.instance(index)
        instance.pulls.extend(instance.engine.start_pulls(self.cluster.now))
        if instance.pulls:
            error = HandoffError("link down") if fails else None
            instance.end_pull(which % len(instance.pulls), self.cluster.now, error)
        self.cluster.carry_news()

    @rule(index=st.integers(0, 3), which=st.integers(0, 5), lose_after=st.sampled_from([None, None, 0, 1]))
    def fetch(self, index: int, which: int, lose_after: int | None) -> None:
        instance = self.instance(index)
        if instance.fetches:
            instance.end_fetch(which % len(instance.fetches), self.cluster.now, lose_after)

    @rule(index=st.integers(0, 3), which=st.integers(0, 5), dropped=st.booleans())
    def store(self, index: int, which: int, dropped: bool) -> None:
        instance = self.instance(index)
        if instance.stores:
            instance.end_store(which % len(instance.stores), self.cluster.now, dropped=dropped)

    @precondition(lambda self: self.cluster.records)
    @rule(which=st.integers(0, 1000))
    def cancel(self, which: int) -> None:
        records = list(self.cluster.records.values())
        self.cluster.cancel(records[which % len(records)])

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0]))
    def pass_time(self, seconds: float) -> None:
        self.cluster.now += seconds

    @rule(index=st.integers(0, 3), offer=st.booleans())
    def drain(self, index: int, offer: bool) -> None:
        """Drain an instance; one of any role stays."""
        engine = self.instance(index).engine
        staying = [i for i in self.cluster.instances.values() if not i.engine.snapshot(0.0).draining]
        if staying != [self.instance(index)]:
            if offer:
                engine.move_out(self.cluster.now)
            else:
                engine.drain()
            self.cluster.carry_news()

    @rule()
    def decode_at_source(self) -> None:
        self.cluster.decode_at_source()

    @rule(index=st.integers(0, 3))
    def replace_drained(self, index: int) -> None:
        instance = self.instance(index)
        if instance.engine.snapshot(0.0).draining and instance.engine.idle() and not instance.busy:
            self.cluster.leave(instance.replica)
            self.cluster.join(instance.replica, instance.engine.settings)

    @rule(lose=st.booleans())
    def acknowledgements(self, lose: bool) -> None:
        self.cluster.lose_releases = lose

    @rule(rounds=st.integers(1, 12))
    def run(self, rounds: int) -> None:
        self.cluster.run(rounds)

    @invariant()
    def ledgers_balance(self) -> None:
        if not hasattr(self, "cluster"):
            return
        self.cluster.check()
        for record in self.cluster.records.values():
            assert record.output == self.expected(record)[: len(record.output)]

    def expected(self, record: Record) -> tuple[int, ...]:
        return reference_output(record.spec, MAX_LEN)[0]

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        self.cluster.run_until_idle(5000)
        while any(not record.journal.done for record in self.cluster.records.values()):
            self.cluster.decode_at_source()  # the role stayed empty
            self.cluster.run_until_idle(5000)
        self.cluster.assert_empty()
        for record in self.cluster.records.values():
            if record.cancelled:
                continue
            assert record.failure is None
            assert record.output == self.expected(record)
            assert record.delivered[-1].finish_reason is reference_output(record.spec, MAX_LEN)[1]
            if record.spec.sampling.prompt_logprobs is not None:
                assert record.delivered[0].prompt_logprobs == reference_prompt_logprobs(record.spec.prompt)
            if record.spec.sampling.logprobs is not None:
                chosen = tuple(lp.token for d in record.delivered for lp in d.logprobs)
                assert chosen == record.output

        for log in self.logs:
            result = replay_log(log.close(), "log")
            assert (result.difference, result.ending) == (None, "")
