"""Boards query existing series, and each panel is readable."""

import json
import re
from itertools import pairwise

import pytest
import yaml  # type: ignore[import-untyped]

from deploy.grafana.source.all import BOARDS
from tests.deploy.tools import DEPLOY, ROOT

_SERIES = re.compile(r"\b((?:cloudmatrix|vllm):\w+|http_\w+)")
_LABELS = re.compile(r"{{(\w+)}}")
each_board = pytest.mark.parametrize("name", BOARDS)


@each_board
def test_every_series_is_one_that_we_show(name: str) -> None:
    shown = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    asked = {series for query in _queries(name) for series in _SERIES.findall(query)}
    assert asked
    assert {one for one in asked if f"`{re.sub('_(bucket|count|sum)$', '', one)}`" not in shown} == set()


@each_board
def test_lines_are_told_apart_by_labels_that_they_have(name: str) -> None:
    for panel in _panels(name):
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(set(legends)) == len(legends), panel["title"]
        for target in panel["targets"]:
            for label in _LABELS.findall(target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), panel["title"]


@each_board
def test_panels_do_not_lie_on_each_other(name: str) -> None:
    places = sorted((one["gridPos"]["y"], one["gridPos"]["x"], one["gridPos"]["w"]) for one in _panels(name))
    for (row, left, width), (next_row, next_left, _) in pairwise(places):
        assert row != next_row or left + width <= next_left
    assert all(left + width <= 24 for _, left, width in places)


@each_board
def test_its_source_is_the_one_that_is_provisioned(name: str) -> None:
    text = (DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yaml").read_text()
    (source,) = yaml.safe_load(text)["datasources"]
    assert {panel["datasource"]["uid"] for panel in _panels(name)} == {source["uid"]}


def _panels(name: str) -> list[dict]:
    board = json.loads((DEPLOY / "grafana" / "boards" / f"{name}.json").read_text(encoding="utf-8"))
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def _queries(name: str) -> list[str]:
    return [target["expr"] for panel in _panels(name) for target in panel["targets"]]
