"""Commands on attention ranks and expert ranks in virtual time: checked by the live group's core, with their costs."""

from dataclasses import replace
from typing import Any

import pytest

from hardware.faults import Fault, FaultKind
from hardware.units import Seconds
from serving.errors import ConfigError
from serving.faults.scenario import CommandConfig
from serving.virtual.result import Outcome, SimResult
from serving.virtual.simulation import simulate
from tests.virtual.core.case import config, workload

RANKS = {"npus_per_instance": 4, "attention_ranks": 3, "expert_ranks": 2, "expert_npus": 4, "max_sequences": 512}
SIMULATION = {"routing": "skew", "domains": 2, "start_s": 5.0}
SETTINGS = config(
    simulation=SIMULATION, decode=RANKS, prefill={"replicas": 1},
    experts={"redundant": 1, "policy": "none"},
)  # fmt: skip
MORE, LATER = CommandConfig(4.0, expert_ranks=3), CommandConfig(4.0, switch_to="experts")


def played(*commands: CommandConfig, faults: tuple[Fault, ...] = (), **simulation: Any) -> SimResult:
    settings = replace(SETTINGS, simulation=replace(SETTINGS.simulation, **simulation))
    load = workload([(0.5 * n, 200, 200) for n in range(50)])
    result = simulate(settings, load, timeline_step_s=0.5, check=True, commands=commands, faults=faults)
    assert set(result.requests.outcome) == {Outcome.FINISHED}
    return result


def noted(result: SimResult, *kinds: str) -> list[tuple[str, int, str]]:
    return [(one.kind, one.ranks, one.reason) for one in result.experts if one.kind in kinds]


def test_expert_ranks_grow_and_shrink() -> None:
    result = played(MORE, CommandConfig(12.0, attention_ranks=4, expert_ranks=2))
    first, then = "3 -> 3 attention ranks, 2 -> 3 expert ranks", "3 -> 4 attention ranks, 3 -> 2 expert ranks"
    found = noted(result, "ordered", "resized", "complete")
    assert [one[:2] for one in found] == [
        ("ordered", 16), ("resized", 24), ("complete", 24), ("ordered", 24), ("resized", 16), ("complete", 16),
    ]  # fmt: skip
    assert [found[0][2], found[3][2]] == [first, then]
    assert found[2][2] == f"{first}; 5.0 s", "the start of a rank"
    assert float(found[5][2].removeprefix(f"{then}; ").removesuffix(" s")) > SETTINGS.simulation.graphs_s + 5.0
    busiest = [max(point.step_s for point in result.timeline if low < point.at_s < low + 3) for low in (5.0, 9.5)]
    assert busiest[1] < busiest[0], "more dies with experts"
    sizes = [point.decode_npus for point in result.timeline]
    assert (sizes[0], max(sizes), sizes[-1]) == (20, 24, 24)
    assert max(point.starting_npus for point in result.timeline) == 4
    assert played(MORE).experts[:4] == result.experts[:4]


def test_a_rank_switches_its_role_and_back_on_the_same_npus() -> None:
    result = played(LATER, CommandConfig(16.0, switch_to="attention"))
    assert [one[1] for one in noted(result, "complete")] == [24, 16]
    assert max(point.decode_npus for point in result.timeline) == 20
    assert result.timeline[-1].idle_npus == result.timeline[0].idle_npus


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        ((CommandConfig(4.0, expert_ranks=9),), "9 expert ranks: give 1 to 8"),
        ((CommandConfig(4.0, attention_ranks=1), CommandConfig(12.0, switch_to="experts")), "it is the only attention"),
        ((MORE, CommandConfig(5.0, expert_ranks=2)), "the group is not whole, or is being resized"),
        ((CommandConfig(4.0, instance=1, expert_ranks=3),), "no such instance is up"),
    ],
)
def test_a_command_is_refused_for_the_reason_of_a_live_group(commands: tuple[CommandConfig, ...], reason: str) -> None:
    (refused,) = noted(played(*commands), "refused")
    assert reason in refused[2]


def test_what_does_not_fit_is_refused() -> None:
    assert (
        "domains is 3, which does not divide 32 attention dies"
        in noted(played(CommandConfig(4.0, attention_ranks=4), domains=3), "refused")[0][2]
    )
    small = replace(SETTINGS, cluster=replace(SETTINGS.cluster, nodes=(replace(SETTINGS.cluster.nodes[0], npus=36),)))
    result = simulate(small, workload([(1.0 * n, 20, 20) for n in range(8)]), commands=[MORE])
    assert noted(result, "refused")[0][2].endswith("needs 4 more NPUs, and 0 are free")


def test_an_instance_that_is_lost_ends_its_command() -> None:
    fault = Fault(Seconds(6.0), FaultKind.KILL, "decode0", Seconds(0.0), 0.0)
    for command in (MORE, LATER):
        (given_up,) = noted(played(command, faults=(fault,)), "given up")
        assert given_up[2].endswith("the instance was lost")


def test_commands_need_ranks_of_two_kinds_and_routing() -> None:
    for wrong in (config(simulation={"routing": "skew"}), config(decode=RANKS, simulation={"domains": 2})):
        with pytest.raises(ConfigError, match=r"expert_ranks, and \[simulation\] routing"):
            simulate(wrong, workload([(0.0, 10, 10)]), commands=[MORE])
