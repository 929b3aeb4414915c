"""Decode instances whose experts have separate dies, in virtual time; configured, and refused by key."""

from typing import Any

import pytest

from hardware.faults import Fault, FaultKind
from hardware.units import Seconds
from serving.config.checks import check_consistency
from serving.config.effects import idle_keys
from serving.errors import ConfigError
from serving.virtual.decode import DecodeInstance
from serving.virtual.result import ACCURACY, Outcome
from serving.virtual.simulation import cost_model, simulate
from serving.virtual.supernode import Supernode
from tests.virtual.core.case import burst, config, mean_tpot, workload

SMALL = {"prefill": {"replicas": 1}, "decode": {"npus_per_instance": 32, "replicas": 1, "max_sequences": 512}}
APART = {"expert_dies": 16}
"""48 attention dies in 3 domains."""


def test_only_attention_dies_have_sequences() -> None:
    settings = config(**SMALL, simulation=APART)
    cost = cost_model(settings)
    node = Supernode(settings, cost, 1)
    decode = node.start_instance("decode")
    assert isinstance(decode, DecodeInstance)
    assert node.groups_of(32) == 48
    assert decode.kv_blocks == 48 * (cost.hbm_plan("decode", 64).kv_tokens // 512)
    assert decode._settings.max_sequences == 512 // 48
    assert decode.npus == 32


def test_a_run_decodes_as_fast_as_the_cost_model_says() -> None:
    """192 sequences, 4 on each attention die, which is 6 for each NPU; all at once, long outputs."""
    settings = config(**SMALL, simulation=APART | {"acceptance": 0.0, "status_period_s": 0.0})
    result = simulate(settings, burst(192, prompt=1024, output=1200, every_s=0.0), check=True)
    assert set(result.requests.outcome) == {Outcome.FINISHED}
    told = cost_model(settings).tpot_s(6, 1024 + 600, dies=64, acceptance=0.0)
    assert mean_tpot(result) == pytest.approx(told, rel=0.1)
    together = cost_model(config(**SMALL)).tpot_s(6, 1024 + 600, dies=64, acceptance=0.0)
    assert mean_tpot(result) > 1.5 * together, "few dies of experts keep the others waiting"
    assert "one deployment only, xDeepServe's 480 + 288 dies" in result.config[ACCURACY]


@pytest.mark.parametrize(("die", "hit"), [("n4.npu0.die1", True), ("n2.npu7.die0", False)])
def test_a_lost_die_of_experts_loses_no_cache(die: str, hit: bool) -> None:
    """The instance is on nodes 2 to 5; the first 16 dies, those of node 2, hold experts."""
    fault = Fault(Seconds(10.0), FaultKind.DIE, die, Seconds(5.0), 0.0)
    load = workload([(0.01 * n, 500, 2000) for n in range(96)])
    result = simulate(config(**SMALL, simulation=APART), load, check=True, faults=(fault,))
    assert set(result.requests.outcome) == {Outcome.FINISHED}
    assert sum(one.sequences_hit for one in result.faults) == (2 if hit else 0)
    plain = simulate(config(**SMALL, simulation=APART), load)
    assert max(result.requests.finish_s) > max(plain.requests.finish_s) + 5, "all of the instance waits"


PARTS = {"policy": "slo", "decode_step_npus": 8, "min_decode_npus": 32, "max_decode_npus": 64}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"simulation": {"expert_dies": 64}}, r"expert_dies = 64 leaves none of the 64 dies of \[decode\]"),
        ({"simulation": {"expert_dies": 20}}, r"domains = 3 does not divide 44 attention dies, which .* leaves of 64"),
        ({"simulation": APART | {"decode_attention_tp": 2}}, "decode_attention_tp together with .* is not priced"),
        ({"simulation": APART | {"head_tp": 2}}, "head_tp together with .* is not priced"),
        ({"simulation": APART, "serving": {"mode": "aggregated"}}, 'mode = "aggregated" has none'),
        ({"simulation": APART, "autoscaler": PARTS}, "decode_step_npus = 8 adds 16: both must be multiples of .* = 3"),
        (
            {"simulation": APART, "autoscaler": PARTS | {"min_decode_npus": 8, "max_decode_npus": 32}},
            "min_decode_npus = 8 leaves 0 dies for attention",
        ),
    ],
)
def test_what_is_not_priced_is_refused_by_its_key(sections: dict[str, dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_consistency(config(**SMALL, **sections), "c.toml", own_nodes=False)


def test_domains_without_dies_of_experts_are_said_to_do_nothing() -> None:
    assert "simulation.domains" in idle_keys(config(**SMALL), "simulate")
    assert "simulation.domains" not in idle_keys(config(**SMALL, simulation=APART), "simulate")
    assert "simulation.domains" not in idle_keys(config(**SMALL), "plan"), "plan may choose dies of experts"
    results = [
        simulate(config(**SMALL, simulation=APART | {"domains": domains}), burst(40, output=20)).requests.finish_s
        for domains in (2, 3)
    ]
    assert list(results[0]) != list(results[1])
