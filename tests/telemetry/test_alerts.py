"""The alerts in deploy/prometheus, judged by Prometheus' own tool, and against the series that gateways show."""

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from serving.experts.live.expert_status import group_stats
from serving.telemetry.group_metrics import GroupStats
from serving.telemetry.metrics import GatewayMetrics
from serving.values.expert_facts import ExchangeFacts, ExpertFacts
from tests.telemetry.samples import samples, stats

HERE = Path(__file__).parent
RULES = HERE.parents[1] / "deploy" / "prometheus" / "experts.rules.yaml"
PROMTOOL = shutil.which("promtool")
_SERIES = re.compile(r"((?:cloudmatrix|vllm):\w+)")


@pytest.mark.skipif(PROMTOOL is None and not os.environ.get("CI"), reason="promtool is not installed")
def test_each_fires_on_what_it_is_for() -> None:
    assert PROMTOOL is not None, "promtool is not installed"
    told = subprocess.run(
        [PROMTOOL, "test", "rules", "experts.rules.test.yaml"], cwd=HERE, capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_their_series_are_shown_with_these_labels() -> None:
    """A rule about a series that nobody makes never fires."""
    metrics = GatewayMetrics("m")
    facts = ExpertFacts(
        epoch=1, map_version=1, members=(0, 1), ranks=2, experts=4, to_ranks=((1, 2),),
        exchange=ExchangeFacts((0, 1), (0, 1), (0.0, 0.5), 4.0),
    )  # fmt: skip
    metrics.publish_instance(replace(stats("decode#a.r0"), rank=0, experts=facts))
    metrics.publish_groups(
        [GroupStats("decode#a", "decode", (1, 0.0), (0.9,), rebalances={"done": 0}, losses={"dead": 0})]
    )
    shown = {name: {key for key, _ in labels} for name, labels in samples(metrics)}
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][0]["rules"]
    for rule in rules:
        for series in _SERIES.findall(rule["expr"]):
            assert series in shown, rule["alert"]
            by = re.findall(r"by \((.*?)\)", rule["expr"])
            assert {label for labels in by for label in labels.split(", ")} <= shown[series], rule["alert"]


def test_counts_begin_at_zero() -> None:
    """`increase` of a series that begins at one is zero: the first loss would not be seen."""
    group = {
        "group": "decode#a", "pool": "decode", "epoch": 1, "told_s": 0.0, "balancedness": [], "rank_layer_rows": [],
        "moved": 0, "outcomes": {"done": 3}, "losses": {}, "rebalances": [], "not_grown": 0, "spares": [],
        "paces": {}, "measures_taken": {},
    }  # fmt: skip
    (told,) = group_stats({"groups": [group]})
    assert told.losses["dead"] == told.losses["late"] == 0
    assert told.rebalances == {"done": 3, "undone": 0}
