"""Every row's tolerance: a figure that moves beyond it fails, in either direction."""

import pytest

from serving.tools.paper.experiment import CLOSE
from serving.tools.paper.registry import EXPERIMENTS
from serving.tools.paper.reproduction import KNOWN_MISSES, UNEXPLAINED, Reproduction
from tests.tools.paper.conftest import LONG

TOLERANCES = {
    "table1": 0.005, "table2": 0.02, "table3": 0.02, "table4": 0.02, "table5": 0.04, "table7": 0.05,
    "table8": 0.001, "table10": 0.04, "table11": 0.006, "fig20": 0.045, "fig21": 0.03, "fig22": 0.04, "fig23": 0.05,
    "fig24": 0.05, "xds-peak": 0.03, "xds-split": 0.04,
    "xds-send": 0.001, "xds-eplb": 0.001, "xds-waits": 0.03, "other-revive": 0.05, "other-ratio": 0.05,
    "other-zone": 0.001, "other-apart": 0.09, "other-errors": 0.01, "other-systems": 0.06, "xds-production": 0.001,
}  # fmt: skip
"""Relative, for all rows of an experiment without one of their own."""

ROWS = {
    ("table5", "batch-50ms-1024"): 0.08, ("table5", "batch-50ms-2048"): 0.12, ("table5", "batch-50ms-4096"): 0.05,
    ("table5", "batch-30ms-4096"): 0.84, ("table5", "batch-15ms-4096"): 0.25, ("fig23", "cut-half"): 0.20,
    ("fig23", "cut-most"): 0.09, ("fig23", "gain-half"): 0.09, ("fig23", "planes"): 0.35,
    ("xds-peak", "iteration"): 0.08, ("xds-peak", "tpot"): 0.05, ("xds-peak", "rate"): 0.05,
    ("xds-peak", "system"): 0.05, ("xds-peak", "share-products"): 0.14, ("xds-peak", "share-attention"): 0.24,
    ("xds-peak", "share-combine"): 0.31, ("xds-peak", "share-others"): 0.13, ("xds-peak", "rate-its"): 0.05,
    ("xds-peak", "tpot-its"): 0.05, ("xds-peak", "system-its"): 0.05, ("xds-split", "iteration"): 0.12,
    ("xds-split", "tpot"): 0.12, ("xds-split", "rate"): 0.09, ("xds-split", "attention"): 0.14,
    ("xds-split", "iteration-drawn"): 0.21, ("xds-production", "tpot"): 0.08,
    ("xds-eplb", "cut-read"): 1.60, ("xds-waits", "dispatch-least"): 0.15, ("xds-waits", "combine-least"): 0.06,
    ("xds-waits", "dispatch"): 0.20, ("xds-waits", "dispatch-spread"): 0.80, ("table3", "sglang-ratio"): 0.05,
    ("other-apart", "ep-32K"): 0.38, ("other-apart", "tpot-3-32K"): 0.28, ("other-apart", "tpot-4-32K"): 0.45,
    ("other-errors", "class-width"): 0.13, ("other-systems", "R1, 8 a GPU, EP32"): 0.08,
    ("other-systems", "R1, 32 a GPU, EP32"): 0.12, ("other-systems", "R1 prefill, TP8, 4K"): 0.16,
    ("other-systems", "Qwen3-8B FP8, 64 a GPU, 4K + 2K"): 0.10,
    ("other-systems", "Kimi-K2, 480 a GPU, EP96, 2K"): 0.13, ("other-systems", "Kimi-K2 prefill, EP32, 2K"): 0.18,
}  # fmt: skip


NIGHTLY = pytest.mark.nightly("tests/tools/paper/test_pinned_rows.py::test_every_row_is_within_its_tolerance")


@pytest.mark.parametrize(
    "experiment", [pytest.param(name, marks=NIGHTLY) if name == LONG else name for name in TOLERANCES]
)
def test_every_row_is_within_its_tolerance(experiment: str, everything: Reproduction) -> None:
    (part,) = [part for part in everything.parts if part.experiment.name == experiment]
    errors = {row.key: row.error for row in part.findings.rows if row.error is not None}
    assert errors
    default = TOLERANCES[experiment]
    beyond = {key: e for key, e in errors.items() if not abs(e) <= ROWS.get((experiment, key), default)}
    assert beyond == {}


def test_every_row_has_its_tolerance_and_every_miss_its_reason(everything: Reproduction) -> None:
    assert [experiment.name for experiment in EXPERIMENTS] == list(TOLERANCES)
    there = {part.experiment.name for part in everything.parts}
    rows = {(part.experiment.name, row.key) for part in everything.parts for row in part.findings.rows}
    assert {key for key in (*ROWS, *KNOWN_MISSES) if key[0] in there} <= rows
    for part in everything.parts:
        keys = [row.key for row in part.findings.rows]
        assert len(keys) == len(set(keys)), part.experiment.name
    for part in everything.parts:
        for row in part.findings.rows:
            far = row.error is not None and not row.within(CLOSE)
            assert bool(part.reason(row)) == far
            assert part.reason(row) != UNEXPLAINED, (part.experiment.name, row)
    assert everything.score.unexplained == 0
    for part in everything.parts:
        for row in part.findings.rows:
            miss = KNOWN_MISSES.get((part.experiment.name, row.key))
            if miss is not None and row.error is not None and not row.within(CLOSE):
                assert miss.within <= max(2 * abs(row.error), abs(row.error) + 0.06), row.key
