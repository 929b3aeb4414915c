"""The random life of engines again, with nothing but guessing sequences, long answers and few blocks."""

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from serving.ids import SequenceId
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.fakes.executor import STOP_TOKEN
from tests.instance.cluster import Cluster
from tests.instance.engine_machine import MAX_LEN, REPLICAS, EngineMachine, prompts


class GuessingMachine(EngineMachine):
    """As `EngineMachine`; every draft cache that is guessed from must be without gaps."""

    @initialize(
        blocks=st.integers(10, 16),
        step_tokens=st.integers(4, 24),
        drafts=st.integers(1, 3),
        guess_percent=st.sampled_from([0, 50, 90, 100]),
        token_s=st.sampled_from([0.0, 0.0001, 0.01]),
        disaggregated=st.booleans(),
        pool=st.booleans(),
    )
    def build(
        self, blocks: int, step_tokens: int, drafts: int, guess_percent: int, token_s: float, disaggregated: bool,
        pool: bool,
    ) -> None:  # fmt: skip
        """
        Args:
            token_s: what a fed token costs; the dearest one lets guessing stop.
        """
        base = EngineSettings(
            block_tokens=4, max_step_tokens=step_tokens, max_sequences=4, max_waiting=6, max_model_len=MAX_LEN,
            watermark_blocks=0, handoff_lease_s=3.0, pool=pool, draft_tokens=drafts, speculation=True,
        )  # fmt: skip
        roles = [EngineRole.PREFILL] * 2 + [EngineRole.DECODE] * 2 if disaggregated else [EngineRole.AGGREGATED] * 4
        named = {name: replace(base, role=role) for name, role in zip(REPLICAS, roles, strict=True)}
        self.cluster = Cluster(named, blocks, max_attempts=10_000)
        for instance in self.cluster.instances.values():
            instance.executor.guess_percent = guess_percent
            instance.executor.token_s = token_s
            instance.executor.whole_drafts = True
        self.count = 0

    @rule(prompt=prompts, tokens=st.integers(5, 30), seed=st.integers(0, 2), stops=st.booleans())
    def submit(self, prompt: tuple[int, ...], tokens: int, seed: int, stops: bool) -> None:
        if sum(not r.journal.done for r in self.cluster.records.values()) >= 6:
            return
        self.count += 1
        sampling = SamplingParams(max_tokens=tokens, seed=seed, stop_token_ids=(STOP_TOKEN,) if stops else ())
        self.cluster.submit(SequenceSpec(SequenceId(f"r/{self.count}"), prompt, sampling))

    @rule(rounds=st.integers(5, 15))
    def run_on(self, rounds: int) -> None:
        self.cluster.run(rounds)


GuessingMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestGuessingMachine = GuessingMachine.TestCase
