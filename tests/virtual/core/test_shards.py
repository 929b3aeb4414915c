"""Several supernodes: the same result for any number of processes, and the sum of their parts."""

from dataclasses import replace
from functools import partial

import pytest

from serving.virtual.report.pools import pool_summaries
from serving.virtual.report.result_json import result_json
from serving.virtual.report.summary import summarize
from serving.virtual.shards import Plan, merge_results, simulate_supernodes
from serving.virtual.simulation import simulate
from serving.virtual.workload.columns import RequestStream
from serving.virtual.workload.synthetic import synthetic_workload
from tests.virtual.core.case import burst, config


def share(rate: float, number: int, count: int) -> RequestStream:
    return synthetic_workload(rate / count, 2.0, 2048, 40, seed=number)


@pytest.mark.nightly("tests/virtual/core/test_shards.py::test_the_whole_is_the_sum_of_its_parts")
def test_processes_change_nothing() -> None:
    plan = Plan(config(simulation={"supernodes": 3}), partial(share, 30.0), check=True)
    told: list[int] = []
    alone = simulate_supernodes(plan, "whole", progress=lambda number, at_s, arrived: told.append(number))
    together = simulate_supernodes(plan, "whole", processes=2)
    assert result_json(alone, summarize(alone), requests=True) == result_json(
        together, summarize(together), requests=True
    )
    assert set(told) == {0, 1, 2}


def test_the_whole_is_the_sum_of_its_parts() -> None:
    one = config()
    parts = [simulate(one, share(12.0, number, 3)) for number in range(3)]
    whole = simulate_supernodes(
        Plan(replace(one, simulation=replace(one.simulation, supernodes=3)), partial(share, 12.0)), "whole"
    )
    assert whole.supernodes == 3
    assert len(whole.requests) == sum(len(part.requests) for part in parts)
    assert list(whole.requests.arrival_s) == sorted(at for part in parts for at in part.requests.arrival_s)
    assert whole.totals.tokens_out == sum(part.totals.tokens_out for part in parts)
    assert whole.timeline[0].decode_npus == 480
    assert len(whole.instances) == 21


def test_one_supernode_is_a_plain_simulation_and_an_idle_one_has_its_npus_until_the_end() -> None:
    plan = Plan(config(), partial(share, 10.0))
    single = simulate_supernodes(plan, "whole")
    assert list(single.requests.finish_s) == list(simulate(config(), share(10.0, 0, 1)).requests.finish_s)
    # As its instances in the table of pools, and as the time line.
    parts = [simulate(config(), burst(count, output=8, every_s=1.0)) for count in (2, 20)]
    whole = merge_results(parts, "both", 0, 0.0)
    assert whole.totals.npu_seconds == pytest.approx(2 * 256 * whole.totals.end_s)
    assert sum(one.npu_hours for one in pool_summaries(whole)) * 3600 == pytest.approx(whole.totals.npu_seconds)
