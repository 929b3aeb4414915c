"""The faults that each command supports, and their documentation."""

from pathlib import Path

import pytest

from hardware.faults import Fault, FaultKind, rates_from
from hardware.units import Seconds
from serving.errors import ConfigError
from serving.faults.scenario import (
    LIVE,
    POOLS_OF,
    VIRTUAL,
    FaultConfig,
    PoolsConfig,
    Scenario,
    check_reach,
    load_scenario,
    reach_table,
)

ROOT = Path(__file__).resolve().parents[2]
POOLS = ("prefill", "decode", "kvcache")


def test_every_kind_has_its_row_in_the_documentation() -> None:
    assert set(POOLS_OF) == set(FaultKind) == set(LIVE) | set(VIRTUAL)
    assert reach_table() in (ROOT / "serving" / "tools" / "chaos" / "README.md").read_text()


def test_a_shipped_scenario_runs_both_ways() -> None:
    both = load_scenario(ROOT / "deploy" / "chaos" / "both.toml")
    check_reach(both, LIVE, "chaos", POOLS)
    check_reach(both, VIRTUAL, "simulate", POOLS)


def test_what_a_command_cannot_do_is_refused_by_name_with_what_it_can() -> None:
    die = Fault(Seconds(3.0), FaultKind.DIE, "n0.npu0.die1", Seconds(1.0), 0.0)
    scenario = Scenario(
        faults=(FaultConfig(FaultKind.FULL_DISK), FaultConfig(FaultKind.FLOOD, weight=0.0)),
        fault=(die,),
        rates=rates_from({"bit_flip": 1}, ""),
    )
    with pytest.raises(ConfigError, match=r"^chaos cannot do .* at 3 s: die\. It can do kill \(prefill, .*flood"):
        check_reach(scenario, LIVE, "chaos", POOLS)
    refused = r"cannot do \[\[faults\]\]\[0\] full_disk; \[rates\] bit_flip\. It can do .*straggler"
    with pytest.raises(ConfigError, match=refused):
        check_reach(scenario, VIRTUAL, "simulate", POOLS)


def test_what_is_never_hit_is_not_refused() -> None:
    engines = {FaultKind.FREEZE: POOLS_OF[FaultKind.SLOW_LINK]}
    freeze = Scenario(faults=(FaultConfig(FaultKind.FREEZE),))
    check_reach(freeze, engines, "simulate", ("prefill", "decode"))
    spared = Scenario(pools=PoolsConfig(kvcache=0.0), faults=freeze.faults)
    check_reach(spared, engines, "simulate", POOLS)
    with pytest.raises(ConfigError, match="freeze of kvcache"):
        check_reach(freeze, engines, "simulate", POOLS)
    parts = Scenario(faults=(FaultConfig(FaultKind.KILL_PART, pools=("gateway", "gcs")),))
    with pytest.raises(ConfigError, match="kill_part of gcs"):
        check_reach(parts, VIRTUAL, "simulate", POOLS)


def test_commands_are_read_and_only_of_virtual_time(tmp_path: Path) -> None:
    scenario = load_scenario(ROOT / "examples" / "resize-roles.toml")
    assert [(one.at_s, one.expert_ranks, one.switch_to) for one in scenario.command] == [
        (20, 7, ""),
        (70, 0, "experts"),
    ]
    check_reach(scenario, VIRTUAL, "simulate", POOLS)
    with pytest.raises(ConfigError, match="use cloudmatrix experts resize and cloudmatrix experts switch"):
        check_reach(scenario, LIVE, "chaos", POOLS)
    file = tmp_path / "unclear.toml"
    for keys in ("", 'expert_ranks = 2\nswitch_to = "experts"'):
        file.write_text(f"[[command]]\nat_s = 3\n{keys}\n")
        with pytest.raises(ConfigError, match="at 3 s: give attention_ranks, expert_ranks or both; or switch_to alone"):
            load_scenario(file)
