"""Scenario files: valid contents, and the messages for errors."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.faults import PROCESS_KINDS, STRENGTHS, Fault, FaultKind
from hardware.units import Seconds
from serving.config.load import load_config
from serving.errors import ConfigError
from serving.faults.scenario import (
    LASTING,
    ONLY_IF_NAMED,
    PARTS,
    POOLS_OF,
    VIRTUAL,
    FaultConfig,
    PoolsConfig,
    Scenario,
    TimesConfig,
    check_flood_keys,
    check_reach,
    check_scenario,
    config_path,
    load_scenario,
)
from serving.faults.schedule import GRAVE, choose, plan_faults, units_with
from serving.tools.chaos.targets import ranks_by_kind

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "chaos"
BESIDE_OTHERS = set(PROCESS_KINDS) - {FaultKind.FLOOD}
"""A flood is judged by latencies, which other faults would disturb: it has a scenario of its own."""


def read(folder: Path, text: str) -> Scenario:
    path = folder / "scenario.toml"
    path.write_text(text)
    return load_scenario(path)


@pytest.mark.parametrize("name", ["kills", "everything", "quick", "flood"])
def test_shipped_scenarios_are_sound_and_bring_a_system(name: str) -> None:
    path = SHIPPED / f"{name}.toml"
    scenario = load_scenario(path)
    config = config_path(scenario, path)
    assert config is not None
    loaded = load_config(config)
    assert [pool.replicas for pool in loaded.pools.values()] == [2, 2]
    assert loaded.kvcache.replicas == 2
    assert loaded.chaos.enabled or not scenario.needs_hooks


def test_shipped_scenarios_have_the_kinds_that_they_should() -> None:
    scenario = load_scenario(SHIPPED / "kills.toml")
    assert (scenario.scenario.duration_s, scenario.scenario.every_s) == (1800, 20)
    assert {fault.kind for fault in scenario.faults} == {"kill", "kill_part", "freeze"}
    assert all(not fault.pools for fault in scenario.faults), "over all pools"
    assert not scenario.needs_hooks

    assert {fault.kind for fault in load_scenario(SHIPPED / "everything.toml").faults} == BESIDE_OTHERS


@pytest.mark.parametrize("seed", range(20))
def test_quick_has_every_kind_with_any_seed(seed: int) -> None:
    scenario = load_scenario(SHIPPED / "quick.toml")
    schedule = plan_faults(scenario, seed, scenario.scenario.duration_s, UNITS)
    assert {planned.kind for planned in schedule} == BESIDE_OTHERS
    assert any((planned.kind, planned.pools) == ("kill", ("decode",)) for planned in schedule), "a stream to be drawn"


def test_mistakes_name_what_was_meant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key `evry_s`; did you mean `every_s`\?"):
        read(tmp_path, '[scenario]\nevry_s = 3\n[[faults]]\nkind = "kill"\n')
    with pytest.raises(ConfigError, match=r"unknown section \[falts\]; did you mean \[faults\]\?"):
        read(tmp_path, '[falts]\nkind = "kill"\n')
    with pytest.raises(ConfigError, match="name one with --scenario"):
        load_scenario(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[fault]\nkind = "kill"\n', r"each fault as a table of its own: \[\[fault\]\]"),
        ('[[fault]]\nat_s = "soon"\nkind = "kill"\ntarget = "decode0"\n', "fault 1: at_s: 'soon' is no duration"),
        ('[[fault]]\nat_s = 1\nkind = "full_disk"\ntarget = "decode0"\n', "must be written like memory2"),
        ('[[fault]]\nat_s = 1\nkind = "kill_part"\ntarget = "dashbord0"\n', "'dashbord0'; it can hit agents"),
        ('[[fault]]\nat_s = 1\nkind = "flood"\nduration_s = inf\n', "duration_s must be finite"),
        ('[[faults]]\nkind = "kill"\nuntil_replaced = true\n', "goes with `freeze` only"),
        ("rates = 3\n", "must be a section of kinds"),
        ("[rates]\nkil = 3\n", "unknown kind 'kil', did you mean 'kill'"),
        ("[rates]\nkill = -1\n", "rate of kill faults is -1.0"),
        ('[[faults]]\nkind = "kil"\n', "must be one of"),
        ('[[faults]]\nkind = "full_disk"\npools = ["decode"]\n', "can hit kvcache"),
        ('[[faults]]\nkind = "cancel_burst"\npools = ["decode"]\n', "leave `pools` out"),
        ('[[faults]]\nkind = "freeze"\nleast_s = 4\nmost_s = 3\n', "most_s = 3 is below least_s = 4"),
        ('[load]\nrate_per_s = 0\n[[faults]]\nkind = "kill"\n', "must be between"),
    ],
)
def test_what_no_run_can_be_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_hooks_and_systems_are_optional(tmp_path: Path) -> None:
    scenario = Scenario(faults=(FaultConfig(FaultKind.KILL), FaultConfig(FaultKind.BIT_FLIP, weight=0.0)))
    check_scenario(scenario)
    assert not scenario.needs_hooks
    assert Scenario(faults=(FaultConfig(FaultKind.SLOW_LINK),)).needs_hooks
    assert config_path(Scenario(), tmp_path / "x.toml") is None


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ((None, None), "give both --api-key and --flood-api-key"),
        (("a", None), "give both"),
        (("a", "a"), "of another tenant"),
    ],
)
def test_a_flood_needs_the_key_of_another_tenant(keys: tuple[str | None, str | None], told: str) -> None:
    flood = Scenario(faults=(FaultConfig(FaultKind.FLOOD),))
    with pytest.raises(ConfigError, match=told):
        check_flood_keys(flood, *keys)
    check_flood_keys(flood, "a", "b")
    check_flood_keys(Scenario(faults=(FaultConfig(FaultKind.FLOOD, weight=0.0), FaultConfig(FaultKind.KILL))), *keys)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[[faults]]\nkind = "kill"\nweight = inf\n', "weight = inf"),
        ('[[faults]]\nkind = "kill"\nmost_s = inf\n', "most_s = inf"),
        ('[scenario]\nevery_s = inf\n[[faults]]\nkind = "kill"\n', "every_s = inf"),
        ('[pools]\nprefill = 1e308\n[[faults]]\nkind = "kill"\n', "prefill = 1e\\+308 must be between"),
    ],
)
def test_numbers_without_end_are_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_scenario(path)


@pytest.mark.parametrize("named", ["a\\u0000b", "~nobody-of-this-name/x"])
def test_a_configuration_that_is_no_file_name_is_told(tmp_path: Path, named: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(f'[scenario]\nconfig = "{named}"\n[[faults]]\nkind = "kill"\n')
    with pytest.raises(ConfigError, match="no name of a file"):
        config_path(load_scenario(path), path)


POOLS = ("prefill", "decode", "kvcache")
UNITS = units_with({"prefill": 2, "decode": 2, "kvcache": 2}, 1)
ALL = Scenario(
    TimesConfig(first_s=5, every_s=10, spread=0.5, quiet_s=20),
    faults=tuple(FaultConfig(kind) for kind in PROCESS_KINDS),
)


def planned(
    kind: FaultKind = FaultKind.KILL,
    pools: tuple[str, ...] = ("decode", "prefill"),
    draw: float = 0.0,
    spare_last: bool = False,
) -> Fault:
    return Fault(Seconds(0.0), kind, "", Seconds(1.0), STRENGTHS[kind].value, pools, draw, spare_last)


@given(st.integers(0, 10_000), st.floats(1, 3000))
def test_the_same_seed_gives_the_same_schedule(seed: int, duration_s: float) -> None:
    schedule = plan_faults(ALL, seed, duration_s, UNITS)
    assert schedule == plan_faults(ALL, seed, duration_s, UNITS)
    for index, fault in enumerate(schedule):
        begin = 5 + 10 * index
        assert begin <= fault.at_s <= min(begin + 5, duration_s - 20), "in the first half of its stretch"
        assert set(fault.pools) <= (set(POOLS_OF[fault.kind]) & {*POOLS, *PARTS}) - set(ONLY_IF_NAMED)
        assert (2.0 <= fault.duration_s <= 8.0) == (fault.kind in LASTING)


def test_schedules_go_by_seed_time_and_weight() -> None:
    assert plan_faults(ALL, 1, 600, UNITS) != plan_faults(ALL, 2, 600, UNITS)
    scenario = Scenario(TimesConfig(first_s=10, every_s=20, quiet_s=20), faults=(FaultConfig(FaultKind.KILL),))
    schedule = plan_faults(scenario, 0, 1800, UNITS)
    assert len(schedule) == 89
    first = Counter(fault.pools[0] for fault in schedule)
    assert all(first[pool] > 15 for pool in POOLS), "all pools are hit"
    short, long = plan_faults(ALL, 7, 200, UNITS), plan_faults(ALL, 7, 400, UNITS)
    assert long[: len(short)] == short
    faults = (FaultConfig(FaultKind.KILL, weight=3.0), FaultConfig(FaultKind.FREEZE, weight=1.0))
    scenario = Scenario(TimesConfig(every_s=1, quiet_s=0), faults=faults)
    kinds = Counter(fault.kind for fault in plan_faults(scenario, 3, 2000, UNITS))
    assert 2.5 < kinds[FaultKind.KILL] / kinds[FaultKind.FREEZE] < 3.6
    times = TimesConfig(first_s=0, every_s=1, quiet_s=0, in_turn=True)
    each = (*ALL.faults, FaultConfig(FaultKind.KILL, weight=0.0, pools=("decode",)))
    turns = [fault.kind for fault in plan_faults(Scenario(times, faults=each), 5, 20, UNITS)]
    count = len(PROCESS_KINDS)
    assert sorted(turns[:count]) == sorted(turns[count : 2 * count]) == sorted(PROCESS_KINDS)
    assert turns[:count] != turns[count : 2 * count]


def test_what_cannot_be_hit_is_not() -> None:
    scenario = Scenario(TimesConfig(every_s=1), pools=PoolsConfig(kvcache=0.0), faults=(FaultConfig(FaultKind.KILL),))
    assert all("kvcache" not in fault.pools for fault in plan_faults(scenario, 0, 500, UNITS))
    scenario = Scenario(TimesConfig(every_s=1), faults=(FaultConfig(FaultKind.FULL_DISK),))
    assert plan_faults(scenario, 0, 100, units_with({"prefill": 2, "decode": 2}, 1)) == ()
    for named, hit in (((), False), (("node", "gcs"), True)):
        scenario = Scenario(faults=(FaultConfig(FaultKind.KILL_PART, pools=named),))
        drawn = {pool for fault in plan_faults(scenario, 0, 600.0, UNITS) for pool in fault.pools}
        assert ("node" in drawn, "gcs" in drawn) == (hit, True)


def test_ranks_of_two_kinds_are_hit_by_their_kind(tmp_path: Path) -> None:
    scenario = load_scenario(SHIPPED / "roles.toml")
    drawn = {pool for fault in plan_faults(scenario, 0, 600.0, UNITS) for pool in fault.pools}
    assert drawn == {"attention_rank", "expert_rank", "shell"}
    load_config(SHIPPED / "two-roles.toml")
    with pytest.raises(ConfigError, match="attention_rank"):
        check_reach(scenario, VIRTUAL, "cloudmatrix simulate", UNITS.pools)
    row = {"replica": "decode#a.r8", "pid": 7, "role": "experts"}
    assert ranks_by_kind({"pools": [{"name": "decode", "replicas": [row]}]}) == {"decode#a.r8": "expert_rank"}


def test_whom_a_draw_picks() -> None:
    healthy = {"decode": ["d2", "d1"], "prefill": ["p1", "p2"]}
    assert choose(planned(draw=0.0), healthy) == ("decode", "d1")
    assert choose(planned(draw=0.99), healthy) == ("decode", "d2")
    spared = planned(spare_last=True)
    assert choose(spared, {"decode": ["d1"], "prefill": ["p1", "p2"]}) == ("prefill", "p1")
    assert choose(spared, {"decode": ["d1"], "prefill": ["p1"]}) is None
    assert choose(planned(), {"decode": ["d1"]}) == ("decode", "d1")
    named = Fault(Seconds(0.0), FaultKind.KILL, "memory1", Seconds(0.0), 0.0)
    assert choose(named, {"kvcache": ["m2", "m1"]}) == ("kvcache", "m2")
    assert choose(named, {"kvcache": ["m1"]}) is None
    assert "slow_link" not in GRAVE
    assert choose(planned(FaultKind.SLOW_LINK), {"decode": ["d1"]}) == ("decode", "d1")
    assert choose(planned(FaultKind.KILL_PART, ("gcs",)), {"gcs": ["gcs#7"], "decode": ["d1"]}) == ("gcs", "gcs#7")


@given(st.floats(0, 1, exclude_max=True), st.lists(st.sampled_from("abcdef"), min_size=1, unique=True))
def test_every_draw_names_somebody_who_is_there(draw: float, names: list[str]) -> None:
    chosen = choose(planned(draw=draw, pools=("decode",)), {"decode": names})
    assert chosen is not None
    assert chosen[1] in names
