"""Instances whose dies share sequences, prompts or the LM head, in virtual time; configured, and refused by key."""

import json
from pathlib import Path
from typing import Any

import pytest

from hardware.errors import SpecError
from hardware.faults import Fault, FaultKind
from hardware.units import Seconds
from serving.config.checks import check_consistency
from serving.errors import ConfigError
from serving.virtual.decode import DecodeInstance
from serving.virtual.result import ACCURACY, Outcome
from serving.virtual.simulation import cost_model, simulate
from serving.virtual.supernode import Supernode
from tests.hardware.cost.known import KNOWN
from tests.virtual.core.case import burst, config, mean_tpot, workload

SMALL = {"prefill": {"replicas": 1}, "decode": {"npus_per_instance": 32, "max_sequences": 256}}


@pytest.mark.parametrize("tp", [2, 8])
def test_a_decode_instance_has_a_group_for_so_many_dies(tp: int) -> None:
    settings = config(**SMALL, simulation={"decode_attention_tp": tp})
    cost = cost_model(settings)
    node = Supernode(settings, cost, 1)
    decode = node.start_instance("decode")
    assert isinstance(decode, DecodeInstance)
    plan = cost.hbm_plan("decode", 64)
    assert decode.kv_blocks == 64 // tp * (plan.kv_tokens // 512)
    assert node.groups_of(32) == 64 // tp
    assert decode._settings.max_sequences == 256 * tp // 64


def test_few_sequences_decode_faster_where_dies_share_them() -> None:
    apart, shared = (
        simulate(config(**SMALL, simulation={"decode_attention_tp": tp, "head_tp": tp}), burst(6, output=200))
        for tp in (1, 4)
    )
    assert list(shared.requests.outcome) == [Outcome.FINISHED] * 6
    assert mean_tpot(shared) < mean_tpot(apart)
    assert "not checked: no row has attention TP 4, LM-head TP 4" in shared.config[ACCURACY]
    assert "attention TP" not in apart.config[ACCURACY]


def test_a_dense_model_that_no_die_holds_runs_where_it_is_divided(tmp_path: Path) -> None:
    sections: dict[str, dict[str, Any]] = {
        "prefill": {"replicas": 1, "npus_per_instance": 4},
        "decode": {"npus_per_instance": 4, "max_sequences": 64},
    }
    (tmp_path / "config.json").write_text(json.dumps(KNOWN["llama-3.1-70b"]), encoding="utf-8")
    model = {"path": tmp_path, "name": "llama-3.1-70b"}
    whole = config(model=model, simulation={"drafts": 0}, **sections)
    with pytest.raises((ConfigError, SpecError), match="give a dense model a larger attention_tp"):
        simulate(whole, burst(1))
    simulation = {"drafts": 0, "weights": "w8a8", "decode_attention_tp": 8, "prefill_attention_tp": 4}
    divided = config(model=model, simulation=simulation, **sections)
    result = simulate(divided, burst(8, prompt=1500, output=40), check=True)
    assert list(result.requests.outcome) == [Outcome.FINISHED] * 8


def test_a_lone_prompt_fills_only_the_die_that_has_it() -> None:
    """This differs where sequences are split over all dies."""
    first = {}
    for layout in ("device", "data-parallel", "context-parallel"):
        rows = simulate(config(**SMALL, simulation={"prefill_attention": layout}), burst(1)).requests
        first[layout] = rows.first_token_s[0] - rows.arrival_s[0]
    assert first["data-parallel"] > 2 * first["device"]
    assert first["context-parallel"] < first["data-parallel"]


def test_a_lost_die_takes_what_its_group_holds() -> None:
    """Instances are of 16 and 32 NPUs, on nodes 0 and 1, and 2 to 5."""
    fault = Fault(Seconds(10.0), FaultKind.DIE, "n3.npu0.die1", Seconds(5.0), 0.0)
    load = workload([(0.01 * n, 500, 2000) for n in range(128)])
    hit = []
    for tp in (1, 8):
        settings = config(
            prefill={"replicas": 1}, decode={"npus_per_instance": 32, "replicas": 1, "max_sequences": 512},
            simulation={"decode_attention_tp": tp},
        )  # fmt: skip
        result = simulate(settings, load, check=True, faults=(fault,))
        assert set(result.requests.outcome) == {Outcome.FINISHED}
        hit.append(sum(one.sequences_hit for one in result.faults))
    assert (hit[0], hit[1]) == (2, 16)


@pytest.mark.parametrize(
    ("simulation", "message"),
    [
        ({"decode_attention_tp": 3}, r"\[simulation\] decode_attention_tp = 3 does not divide the 64 dies of \[decode"),
        ({"prefill_attention_tp": 5}, r"prefill_attention_tp = 5 does not divide the 32 dies of \[prefill\]"),
        ({"head_tp": 7}, r"head_tp = 7 does not divide the 64 dies of \[decode\]"),
        ({"expert_tp": 3}, r"expert_tp = 3 does not divide the 64 dies of"),
        (
            {"expert_tp": 2, "expert_dies": 16, "domains": 1},
            r"\[simulation\] expert_tp together with \[simulation\] expert_dies = 16 is not priced",
        ),
        ({"head_tp": 64}, r"head_tp = 64 does not divide the 32 dies of \[prefill\]"),
        (
            {"prefill_attention_tp": 2, "prefill_attention": "sp-tp-sp"},
            r'prefill_attention = "sp-tp-sp" is over all dies, but prefill_attention_tp = 2 over groups of them',
        ),
    ],
)
def test_what_divides_no_instance_is_refused_by_its_key(simulation: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_consistency(config(**SMALL, simulation=simulation), "c.toml", own_nodes=False)


def test_what_divides_no_part_or_a_device_does_not_allow_is_refused() -> None:
    scaler = {"policy": "slo", "decode_step_npus": 8, "min_decode_npus": 32, "max_decode_npus": 64}
    settings = config(**SMALL, autoscaler=scaler, simulation={"decode_attention_tp": 32})
    with pytest.raises(ConfigError, match=r"32 does not divide the 16 dies of \[autoscaler\] decode_step_npus"):
        check_consistency(settings, "c.toml", own_nodes=False)
    settings = config(**SMALL, simulation={"decode_attention_tp": 16, "device": "h800"})
    with pytest.raises((ConfigError, SpecError), match="attention_tp is 16, but the scale-up fabric of h800 joins 8"):
        simulate(settings, burst(1))
