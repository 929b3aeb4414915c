"""Scenario files: what they may say, and how their mistakes are told."""

from pathlib import Path

import pytest

from serving.config.load import load_config
from serving.errors import ConfigError
from serving.tools.chaos.scenario import POOLS_OF, FaultConfig, Scenario, check_scenario, config_path, load_scenario
from serving.tools.chaos.schedule import plan_faults

SHIPPED = Path(__file__).resolve().parents[3] / "deploy" / "chaos"


def read(folder: Path, text: str) -> Scenario:
    path = folder / "scenario.toml"
    path.write_text(text)
    return load_scenario(path)


@pytest.mark.parametrize("name", ["kills", "everything", "quick"])
def test_shipped_scenarios_are_sound_and_bring_a_system(name: str) -> None:
    path = SHIPPED / f"{name}.toml"
    scenario = load_scenario(path)
    config = config_path(scenario, path)
    assert config is not None
    loaded = load_config(config)
    assert [pool.replicas for pool in loaded.pools.values()] == [2, 2]
    assert loaded.kvcache.replicas == 2
    assert loaded.chaos.enabled or not scenario.needs_hooks


def test_kills_is_what_the_goal_says() -> None:
    scenario = load_scenario(SHIPPED / "kills.toml")
    assert (scenario.scenario.duration_s, scenario.scenario.every_s) == (1800, 20)
    assert {fault.kind for fault in scenario.faults} == {"kill", "kill_part", "freeze"}
    assert all(not fault.pools for fault in scenario.faults), "over all pools"
    assert not scenario.needs_hooks


def test_everything_has_every_kind() -> None:
    assert {fault.kind for fault in load_scenario(SHIPPED / "everything.toml").faults} == set(POOLS_OF)


@pytest.mark.parametrize("seed", range(20))
def test_quick_has_every_kind_with_any_seed(seed: int) -> None:
    scenario = load_scenario(SHIPPED / "quick.toml")
    schedule = plan_faults(scenario, seed, scenario.scenario.duration_s, ("prefill", "decode", "kvcache"))
    assert {planned.kind for planned in schedule} == set(POOLS_OF)
    assert any((planned.kind, planned.pools) == ("kill", ("decode",)) for planned in schedule), "a stream to be drawn"


def test_an_unknown_key_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key `evry_s`; did you mean `every_s`\?"):
        read(tmp_path, '[scenario]\nevry_s = 3\n[[faults]]\nkind = "kill"\n')


def test_an_unknown_section_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown section \[fault\]; did you mean \[faults\]\?"):
        read(tmp_path, '[fault]\nkind = "kill"\n')


def test_a_file_that_is_not_there_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name one with --scenario"):
        load_scenario(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no .* with a weight above 0"),
        ('[[faults]]\nkind = "kill"\nweight = 0\n', "no .* with a weight above 0"),
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


def test_a_fault_needs_hooks_only_if_it_can_come() -> None:
    scenario = Scenario(faults=(FaultConfig("kill"), FaultConfig("bit_flip", weight=0.0)))
    check_scenario(scenario)
    assert not scenario.needs_hooks
    assert Scenario(faults=(FaultConfig("slow_link"),)).needs_hooks


def test_a_scenario_may_bring_no_system(tmp_path: Path) -> None:
    assert config_path(Scenario(), tmp_path / "x.toml") is None


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
