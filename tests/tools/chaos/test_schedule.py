"""The schedule: a pure function of scenario and seed."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from serving.tools.chaos.scenario import ONLY_IF_NAMED, PARTS, POOLS_OF, FaultConfig, PoolsConfig, Scenario, TimesConfig
from serving.tools.chaos.schedule import GRAVE, PlannedFault, choose, plan_faults

POOLS = ("prefill", "decode", "kvcache")
ALL = Scenario(
    TimesConfig(first_s=5, every_s=10, spread=0.5, quiet_s=20), faults=tuple(FaultConfig(kind) for kind in POOLS_OF)
)


def planned(kind: str = "kill", pools: tuple[str, ...] = ("decode", "prefill"), draw: float = 0.0) -> PlannedFault:
    return PlannedFault(1, 0.0, kind, pools, draw, 1.0, FaultConfig(kind))  # type: ignore[arg-type]


@given(st.integers(0, 10_000), st.floats(1, 3000))
def test_the_same_seed_gives_the_same_schedule(seed: int, duration_s: float) -> None:
    schedule = plan_faults(ALL, seed, duration_s, POOLS)
    assert schedule == plan_faults(ALL, seed, duration_s, POOLS)
    assert [fault.number for fault in schedule] == list(range(1, len(schedule) + 1))
    for index, fault in enumerate(schedule):
        begin = 5 + 10 * index
        assert begin <= fault.at_s <= min(begin + 5, duration_s - 20), "in the first half of its stretch"
        assert set(fault.pools) <= (set(POOLS_OF[fault.kind]) & {*POOLS, *PARTS}) - set(ONLY_IF_NAMED)
        assert fault.fault.least_s <= fault.lasts_s <= fault.fault.most_s


def test_other_seeds_give_other_schedules() -> None:
    assert plan_faults(ALL, 1, 600, POOLS) != plan_faults(ALL, 2, 600, POOLS)


def test_half_an_hour_of_kills_has_as_many_as_stretches() -> None:
    scenario = Scenario(TimesConfig(first_s=10, every_s=20, quiet_s=20), faults=(FaultConfig("kill"),))
    schedule = plan_faults(scenario, 0, 1800, POOLS)
    assert len(schedule) == 89
    first = Counter(fault.pools[0] for fault in schedule)
    assert all(first[pool] > 15 for pool in POOLS), "all pools are hit"


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    short, long = plan_faults(ALL, 7, 200, POOLS), plan_faults(ALL, 7, 400, POOLS)
    assert long[: len(short)] == short


def test_weights_say_how_often() -> None:
    faults = (FaultConfig("kill", weight=3.0), FaultConfig("freeze", weight=1.0))
    scenario = Scenario(TimesConfig(every_s=1, quiet_s=0), faults=faults)
    kinds = Counter(fault.kind for fault in plan_faults(scenario, 3, 2000, POOLS))
    assert 2.5 < kinds["kill"] / kinds["freeze"] < 3.6


def test_in_turn_every_table_comes_before_any_comes_again() -> None:
    times = TimesConfig(first_s=0, every_s=1, quiet_s=0, in_turn=True)
    faults = (*ALL.faults, FaultConfig("kill", weight=0.0, pools=("decode",)))
    kinds = [fault.kind for fault in plan_faults(Scenario(times, faults=faults), 5, 20, POOLS)]
    assert sorted(kinds[:7]) == sorted(kinds[7:14]) == sorted(POOLS_OF)
    assert kinds[:7] != kinds[7:14]


def test_a_pool_of_no_weight_is_never_hit() -> None:
    scenario = Scenario(TimesConfig(every_s=1), pools=PoolsConfig(kvcache=0.0), faults=(FaultConfig("kill"),))
    assert all("kvcache" not in fault.pools for fault in plan_faults(scenario, 0, 500, POOLS))


def test_a_fault_that_can_hit_nobody_here_does_not_come() -> None:
    scenario = Scenario(TimesConfig(every_s=1), faults=(FaultConfig("full_disk"),))
    assert plan_faults(scenario, 0, 100, ("prefill", "decode")) == ()


def test_the_draw_picks_among_the_healthy() -> None:
    healthy = {"decode": ["d2", "d1"], "prefill": ["p1", "p2"]}
    assert choose(planned(draw=0.0), healthy, True) == ("decode", "d1")
    assert choose(planned(draw=0.99), healthy, True) == ("decode", "d2")


def test_the_last_of_a_pool_is_spared_and_another_pool_hit() -> None:
    assert choose(planned(), {"decode": ["d1"], "prefill": ["p1", "p2"]}, True) == ("prefill", "p1")
    assert choose(planned(), {"decode": ["d1"], "prefill": ["p1"]}, True) is None
    assert choose(planned(), {"decode": ["d1"]}, False) == ("decode", "d1")


def test_faults_that_take_nobody_away_may_hit_the_last() -> None:
    assert "slow_link" not in GRAVE
    assert choose(planned("slow_link"), {"decode": ["d1"]}, True) == ("decode", "d1")


def test_a_node_is_hit_only_if_it_is_named() -> None:
    for named, hit in (((), False), (("node", "gcs"), True)):
        scenario = Scenario(faults=(FaultConfig("kill_part", pools=named),))
        drawn = {pool for fault in plan_faults(scenario, 0, 600.0, POOLS) for pool in fault.pools}
        assert ("node" in drawn, "gcs" in drawn) == (hit, True)


def test_parts_of_which_there_is_one_are_not_spared() -> None:
    assert choose(planned("kill_part", ("gcs",)), {"gcs": ["gcs#7"], "decode": ["d1"]}, True) == ("gcs", "gcs#7")


@given(st.floats(0, 1, exclude_max=True), st.lists(st.sampled_from("abcdef"), min_size=1, unique=True))
def test_every_draw_names_somebody_who_is_there(draw: float, names: list[str]) -> None:
    chosen = choose(planned(draw=draw, pools=("decode",)), {"decode": names}, False)
    assert chosen is not None
    assert chosen[1] in names
