"""The alerts in deploy/prometheus, checked by Prometheus' own tool, and against the series that gateways export."""

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from serving.group.core.expert_status import group_stats
from serving.telemetry.group_metrics import GroupStats
from serving.telemetry.metrics import GatewayMetrics
from serving.values.expert_map import ExchangeFacts, ExpertFacts
from tests.telemetry.samples import samples, stats

HERE = Path(__file__).parent
DEPLOY = HERE.parents[1] / "deploy"
RULES = DEPLOY / "prometheus" / "experts.rules.yaml"
PROMTOOL = shutil.which("promtool")
_SERIES = re.compile(r"((?:cloudmatrix|vllm):\w+)")


@pytest.mark.skipif(PROMTOOL is None and not os.environ.get("CI"), reason="promtool is not installed")
@pytest.mark.parametrize("kind", ["experts", "serving"])
def test_each_fires_on_what_it_is_for(kind: str) -> None:
    assert PROMTOOL is not None, "promtool is not installed"
    told = subprocess.run(
        [PROMTOOL, "test", "rules", f"{kind}.rules.test.yaml"], cwd=HERE, capture_output=True, text=True, timeout=600
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_their_series_are_shown_with_these_labels() -> None:
    """A rule about a series without a source never fires."""
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
    """`increase` of a series that starts at one is zero: the first loss would be missed."""
    group = {
        "group": "decode#a", "pool": "decode", "epoch": 1, "told_s": 0.0, "balancedness": [], "rank_layer_rows": [],
        "moved": 0, "outcomes": {"done": 3}, "losses": {}, "rebalances": [], "not_grown": 0, "spares": [],
        "masked_count": 0, "paces": {}, "measures_taken": {},
    }  # fmt: skip
    (told,) = group_stats({"groups": [group]})
    assert told.losses["dead"] == told.losses["late"] == 0
    assert told.rebalances == {"done": 3, "undone": 0}


@pytest.mark.parametrize("kind", ["experts", "serving"])
def test_each_is_tested_and_has_its_place_in_the_runbook(kind: str) -> None:
    headings = re.findall(r"^#+ (.*)$", (DEPLOY / "RUNBOOK.md").read_text(encoding="utf-8"), re.MULTILINE)
    tested = (HERE / f"{kind}.rules.test.yaml").read_text(encoding="utf-8")
    for name, annotations in _alerts(kind).items():
        assert name in headings
        assert annotations["runbook"] == f"deploy/RUNBOOK.md#{name.lower()}"
        assert f'alertname="{name}"' in tested or f"alertname: {name}\n" in tested, name


@pytest.mark.parametrize("kind", ["experts", "serving"])
def test_what_they_ask_for_is_something_that_we_show(kind: str) -> None:
    shown = (HERE.parents[1] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    text = (DEPLOY / "prometheus" / f"{kind}.rules.yaml").read_text(encoding="utf-8")
    made = {rule["record"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"] if "record" in rule}
    for series in set(_SERIES.findall(text)) - made:
        assert f"`{re.sub('_(bucket|count|sum)$', '', series)}`" in shown, series


def _alerts(kind: str) -> dict[str, dict[str, str]]:
    """Annotations by name of the alert."""
    groups = yaml.safe_load((DEPLOY / "prometheus" / f"{kind}.rules.yaml").read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule["annotations"] for group in groups for rule in group["rules"] if "alert" in rule}
