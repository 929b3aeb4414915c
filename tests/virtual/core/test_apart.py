"""Decode instances whose experts have separate dies, in virtual time; configured, and refused by key."""

import json
from pathlib import Path
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
from tests.hardware.cost.known import KNOWN
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


RANKS = {"npus_per_instance": 8, "attention_ranks": 3, "expert_ranks": 2, "expert_npus": 4}
"""The NPUs of `SMALL` as ranks of two kinds: 3 x 16 dies, and 2 x 8 dies of experts."""


def test_ranks_of_two_kinds_are_an_instance_of_their_dies() -> None:
    def finished(**sections: dict[str, Any]) -> list[float]:
        given = config(prefill=SMALL["prefill"], **sections)
        check_consistency(given, "c.toml", own_nodes=False)
        return list(simulate(given, burst(40, output=20), check=True).requests.finish_s)

    whole = SMALL["decode"] | {"max_sequences": 48, "max_step_tokens": 96, "max_waiting": 9}
    each = whole | RANKS | {"max_sequences": 16, "max_step_tokens": 32, "max_waiting": 3}
    assert finished(decode=each) == finished(decode=whole, simulation=APART)
    assert finished(decode=each, simulation=APART) == finished(decode=whole, simulation=APART), "given twice, but equal"
    assert "simulation.domains" not in idle_keys(config(decode=each), "simulate")


@pytest.mark.parametrize(
    ("ranks", "others", "message"),
    [
        ({}, {"simulation": {"expert_dies": 20}}, "with 4 NPUs for each expert rank make 16: set it to 0"),
        ({"npus_per_instance": 7, "attention_ranks": 1}, {}, "in virtual time: .* domains = 3 does not divide 14 att"),
        ({"expert_npus": 1}, {}, "in virtual time: .* do not fit on 4 dies"),
        ({}, {"simulation": {"drafts": 0}, "model": {}}, "in virtual time: expert_dies is 16, but .* is dense: it has"),
    ],
)
def test_ranks_of_two_kinds_that_are_not_priced_are_refused_by_their_keys(
    ranks: dict[str, int], others: dict[str, dict[str, Any]], message: str, tmp_path: Path
) -> None:
    if "model" in others:
        (tmp_path / "config.json").write_text(json.dumps(KNOWN["llama-3.1-8b"]))
        others |= {"model": {"path": tmp_path}}
    given = config(**SMALL | others | {"decode": SMALL["decode"] | RANKS | ranks})
    with pytest.raises(ConfigError, match=rf"\[decode\] attention_ranks = .* {message}"):
        simulate(given, burst(1))


def test_domains_without_dies_of_experts_are_said_to_do_nothing() -> None:
    assert "simulation.domains" in idle_keys(config(**SMALL), "simulate")
    assert "simulation.domains" not in idle_keys(config(**SMALL, simulation=APART), "simulate")
    assert "simulation.domains" not in idle_keys(config(**SMALL), "plan"), "plan may choose dies of experts"
    results = [
        simulate(config(**SMALL, simulation=APART | {"domains": domains}), burst(40, output=20)).requests.finish_s
        for domains in (2, 3)
    ]
    assert list(results[0]) != list(results[1])
