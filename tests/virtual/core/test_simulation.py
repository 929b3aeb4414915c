"""Whole simulations: requests are conserved, the same seed gives the same history, more NPUs are never worse."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.errors import ConfigError
from serving.virtual.report.latencies import Slo
from serving.virtual.report.result_json import result_json
from serving.virtual.report.summary import summarize
from serving.virtual.result import Outcome, SimResult
from serving.virtual.simulation import simulate
from serving.virtual.workload.columns import RequestStream
from serving.virtual.workload.synthetic import synthetic_workload
from tests.virtual.core.case import burst, config, workload

TOKEN_BYTES = 70_272
"""KV cache of one token of DeepSeek-R1."""

Requests = st.lists(
    st.tuples(
        st.floats(0.0, 20.0), st.integers(1, 20_000), st.integers(1, 600), st.lists(st.integers(0, 3), max_size=4)
    ),
    min_size=1,
    max_size=25,
)


def run_of(rows: list[tuple[float, int, int, list[int]]], **sections: dict[str, object]) -> SimResult:
    rows = sorted(rows, key=lambda row: row[0])
    blocks = [chain[: prompt // 512] for _, prompt, _, chain in rows]
    return simulate(config(**sections), workload([row[:3] for row in rows], blocks), check=True)


@settings(max_examples=25, deadline=None)
@given(Requests, st.integers(1, 3), st.booleans())
def test_everything_that_goes_in_comes_out(
    rows: list[tuple[float, int, int, list[int]]], prefills: int, pooled: bool
) -> None:
    result = run_of(rows, prefill={"replicas": prefills}, kvcache={"replicas": 4 * pooled, "ub_memory_mib": 65_536})
    requests, totals = result.requests, result.totals
    rows = sorted(rows, key=lambda row: row[0])
    assert list(requests.outcome) == [Outcome.FINISHED] * len(rows)
    assert list(requests.output_tokens) == [row[2] for row in rows]
    assert list(requests.prompt_tokens) == [row[1] for row in rows]
    assert totals.tokens_out == sum(row[2] for row in rows)
    # Tokens: one of each output comes from prefill, the others from decode. No token was lost, so none is counted
    # twice.
    assert totals.tokens_generated == totals.tokens_out - len(rows)
    assert totals.tokens_computed + totals.tokens_cached == totals.prompt_tokens_in == sum(row[1] for row in rows)
    # Bytes: what the fabric carried is what was handed off, pulled and stored; caches only ever save some of it.
    handed = sum(row[1] for row in rows if row[2] > 1) * TOKEN_BYTES
    assert 0 < totals.kv_bytes_handed_off <= handed or handed == 0
    assert totals.kv_bytes_pulled == totals.tokens_pulled * TOKEN_BYTES
    last = result.timeline[-1]
    assert last.rdma_bytes == totals.kv_bytes_handed_off
    assert last.ub_bytes == totals.kv_bytes_pulled + totals.kv_bytes_sent + totals.expert_bytes
    assert totals.kv_bytes_stored <= totals.kv_bytes_sent
    for arrival, first, finish in zip(requests.arrival_s, requests.first_token_s, requests.finish_s, strict=True):
        assert arrival < first <= finish


@settings(max_examples=8, deadline=None)
@given(Requests, st.integers(0, 5), st.sampled_from([0.0, 0.2]), st.sampled_from(["disaggregated", "aggregated"]))
def test_one_seed_gives_one_history(
    rows: list[tuple[float, int, int, list[int]]], seed: int, jitter: float, mode: str
) -> None:
    sections: dict[str, dict[str, object]] = {
        "simulation": {"seed": seed, "jitter": jitter, "spike_share": jitter / 10}, "serving": {"mode": mode},
        "aggregated": {"replicas": 2, "npus_per_instance": 16, "max_sequences": 512},
    }  # fmt: skip

    def bytes_of() -> bytes:
        result = run_of(rows, **sections)
        return result_json(result, summarize(result, Slo(1.0, 0.05)), requests=True)

    assert bytes_of() == bytes_of()


def goodput(load: RequestStream, prefills: int, decodes: int = 1) -> float:
    result = simulate(config(prefill={"replicas": prefills}, decode={"replicas": decodes}), load)
    found = summarize(result, Slo(1.0, 0.05)).goodput
    assert found is not None
    return found.attainment


@pytest.mark.parametrize("rate", [10.0, 40.0, 120.0])
def test_more_npus_never_lower_the_goodput(rate: float) -> None:
    load = synthetic_workload(rate, 8.0, 4096, 64, seed=3)
    shares = [goodput(load, prefills) for prefills in (1, 2, 4, 8)]
    assert shares == sorted(shares)
    assert goodput(load, 4, decodes=2) >= shares[2] - 1e-9


def test_more_load_never_raises_the_goodput() -> None:
    shares = [goodput(synthetic_workload(rate, 8.0, 4096, 64, seed=3), 2) for rate in (5.0, 40.0, 80.0, 160.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0
    assert shares[-1] < 0.5


def test_prefixes_are_found_again_and_locality_sends_prompts_where_they_are() -> None:
    chains = [[1, 2, 3, 4, 5, 6, 7, 8]] * 20
    load = workload([(2.0 * n, 4096, 8) for n in range(20)], chains)
    cached, cold = simulate(config(), load), simulate(config(engine={"prefix_reuse": False}), load)
    # The last token is always computed, hence its block.
    assert list(cached.requests.cached_tokens) == [0] + [3584] * 19
    assert sum(cold.requests.cached_tokens) == 0
    ttft = [
        sum(f - a for a, f in zip(one.requests.arrival_s, one.requests.first_token_s, strict=True))
        for one in (cached, cold)
    ]
    assert ttft[0] < ttft[1]
    load = workload([(0.5 * n, 2048, 8) for n in range(60)], [[n % 5 + 10 * at for at in range(4)] for n in range(60)])
    routed = replace(config(kvcache={"replicas": 0}), gateway=replace(config().gateway, routing="locality"))
    by_locality = simulate(routed, load)
    by_load = simulate(config(kvcache={"replicas": 0}), load)
    assert sum(by_locality.requests.cached_tokens) > sum(by_load.requests.cached_tokens)


def test_requests_end_by_deadline_or_with_the_simulation_or_wait_for_a_place() -> None:
    result = simulate(config(gateway={"request_timeout_s": 1.0}), workload([(0.0, 4096, 2000)]), check=True)
    assert list(result.requests.outcome) == [Outcome.FAILED]
    assert result.decision_counts["fail"] == 1
    result = simulate(config(), burst(100, every_s=0.1), stop_s=2.0)
    outcomes = list(result.requests.outcome)
    assert Outcome.UNFINISHED in outcomes
    assert Outcome.FINISHED in outcomes
    assert result.totals.end_s <= 2.0
    # All but the first 640 of them failed, each after three questions without a pause in between.
    one_each = {"max_sequences": 320, "max_waiting": 1}  # a die decodes one sequence, and one may wait for it
    result = simulate(config(decode=one_each), workload([(0.0, 64, 32)] * 1000), check=True)
    assert list(result.requests.outcome) == [Outcome.FINISHED] * 1000
    assert 0 < result.decision_counts["refuse"] < 4000


def test_a_topology_that_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="NPUs, 128 are free"):
        simulate(config(decode={"replicas": 3}), burst(1))
    with pytest.raises(ConfigError, match="does not fit"):
        simulate(config(decode={"npus_per_instance": 2, "max_sequences": 8}), burst(1))
    with pytest.raises(ConfigError, match="does not fit"):
        simulate(config(serving={"mode": "aggregated"}, aggregated={"npus_per_instance": 2}), burst(1))
    with pytest.raises(ConfigError, match="ascend-910x"):
        simulate(config(simulation={"device": "ascend-910x"}), burst(1))
