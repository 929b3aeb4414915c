"""Scenes of live systems in `tests/e2e`, in virtual time: what their clients get."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hardware.faults import Fault, FaultKind
from hardware.units import Seconds
from serving.config.serve import ServeConfig
from serving.virtual.simulation import simulate
from tests.virtual.core.case import config, workload
from tests.virtual.core.outcome import Seen, seen
from tests.virtual.core.scripted_scaler import ScriptedScaler

STORYTELLER = Path(__file__).parents[3] / "deploy" / "models" / "storyteller"
PROMPT = 30
NODE_NPUS = 8


def ranks_of_two(**sections: dict[str, Any]) -> ServeConfig:
    """Prefill fills the first node, so that the two ranks are the dies of the second node's first NPU."""
    return config(
        model={"path": STORYTELLER, "name": "storyteller"},
        simulation={"routing": "skew", "drafts": 0},
        experts={"redundant": 1, "policy": "none"},
        prefill={"replicas": 1, "npus_per_instance": NODE_NPUS},
        decode={"replicas": 1, "npus_per_instance": 1, "max_sequences": 64},
        **sections,
    )


def rank_lost(streams: int, tokens: int) -> Seen:
    """One of the ranks dies while all streams are being decoded."""
    settings, load = ranks_of_two(), workload([(0.0, PROMPT, tokens)] * streams)
    calm = simulate(settings, load, check=True)
    begun, ended = max(calm.requests.first_token_s), min(calm.requests.finish_s)
    assert begun < ended
    die = Fault(Seconds((begun + ended) / 2), FaultKind.DIE, "n1.npu0.die0", Seconds(300.0), 0.0)
    lost = simulate(settings, load, faults=(die,), check=True)
    assert [one.kind for one in lost.experts] == ["opened", "lost"]
    return seen(lost)


def group_resized(first: Sequence[int], then: Sequence[int]) -> Seen:
    """The group grows by an NPU and shrinks again while streams run.

    Args:
        first, then: tokens of the streams that come before it has grown, and after.
    """
    settings = ranks_of_two(
        autoscaler={
            "policy": "slo",
            "period_s": 0.1,
            "decode_step_npus": 1,
            "min_decode_npus": 1,
            "max_decode_npus": 2,
        },
        engine={"drain_s": 0.0},
    )
    scaler = ScriptedScaler([(0.1, "decode", 2), (40.0, "decode", 1)])
    late = [(39.9 if number % 2 else 60.0, PROMPT, tokens) for number, tokens in enumerate(then)]
    load = workload(sorted([(0.0, PROMPT, tokens) for tokens in first] + late))
    result = simulate(settings, load, scaler=scaler, check=True)
    assert [(one.kind, one.ranks) for one in result.experts] == [("opened", 2), ("resized", 4), ("resized", 2)]
    return seen(result)


def burst(streams: int, tokens: int) -> tuple[Seen, list[tuple[str, int]]]:
    """Many streams reach empty pools, whose instances have two sequences each.

    Returns: outcome, and kinds of the decode pool's decisions with their targets.
    """
    settings = config(
        model={"path": STORYTELLER, "name": "storyteller"},
        simulation={"drafts": 0, "start_s": 1.0},
        prefill={"replicas": 0, "npus_per_instance": 2},
        decode={"replicas": 0, "npus_per_instance": 2, "max_sequences": 2},
        slo={"ttft_s": 0.5},
        gateway={"role_wait_s": 120.0},
        autoscaler={
            "policy": "slo", "period_s": 0.3, "min_prefill": 0, "min_decode": 0, "max_prefill": 1, "max_decode": 3,
            "hold_s": 2.0, "idle_to_zero_s": 3.0,
        },
    )  # fmt: skip
    load = workload([(0.0, PROMPT, tokens)] * streams + [(40.0, PROMPT, 1)])
    result = simulate(settings, load, check=True)
    decided = [(one.kind, one.target) for one in result.scaling if one.pool == "decode" and one.at_s < 40.0]
    whole = seen(result)
    return replace(whole, finished=whole.finished - 1, tokens=whole.tokens - 1), decided
