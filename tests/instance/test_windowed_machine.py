"""Engines of models with a sliding window live at random: every ledger balances, every token is right."""

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from serving.instance.core.settings import EngineRole, EngineSettings
from serving.values.layer_split import LayerSplit
from tests.instance.cluster import Cluster
from tests.instance.engine_machine import MAX_LEN, REPLICAS, EngineMachine

splits = st.builds(LayerSplit, full=st.integers(0, 2), sliding=st.integers(1, 2), window=st.integers(1, 13))


class WindowedMachine(EngineMachine):
    """The life of `EngineMachine`, with blocks that are freed while sequences run."""

    @initialize(
        split=splits,
        spare=st.integers(0, 30),
        step_tokens=st.integers(4, 20),
        sequences=st.integers(1, 4),
        watermark=st.integers(0, 2),
        reuse=st.booleans(),
        cache_decoded=st.booleans(),
        disaggregated=st.booleans(),
        store_blocks=st.sampled_from([None, 0, 3, 100]),
        looks_ahead=st.booleans(),
    )
    def build(
        self, split: LayerSplit, spare: int, step_tokens: int, sequences: int, watermark: int, reuse: bool,
        cache_decoded: bool, disaggregated: bool, store_blocks: int | None, looks_ahead: bool,
    ) -> None:  # fmt: skip
        base = EngineSettings(
            block_tokens=4,
            max_step_tokens=step_tokens,
            max_sequences=sequences,
            max_waiting=6,
            max_model_len=MAX_LEN,
            watermark_blocks=watermark,
            handoff_lease_s=3.0,
            prefix_reuse=reuse,
            cache_decoded=cache_decoded,
            pool=reuse and store_blocks is not None,
            store_decoded=cache_decoded,
            max_store_blocks=store_blocks or 0,
            split=split,
        )
        roles = [EngineRole.PREFILL] * 2 + [EngineRole.DECODE] * 2 if disaggregated else [EngineRole.AGGREGATED] * 4
        named = {name: replace(base, role=role) for name, role in zip(REPLICAS, roles, strict=True)}
        rows = MAX_LEN // 4
        most_sliding = min(rows, -(-(split.window - 1 + step_tokens) // 4) + 1)
        self.cluster = Cluster(named, split.full * rows + split.sliding * most_sliding + spare, max_attempts=10_000)
        self.cluster.looks_ahead = looks_ahead
        assert all(instance.engine.max_len == MAX_LEN for instance in self.cluster.instances.values())
        self.count = 0


WindowedMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

TestWindowedMachine = WindowedMachine.TestCase
