"""Errors of rows, and the treatment of a row that misses."""

import math
from typing import Any

import pytest

from hardware.cost import disaggregated
from hardware.cost.published import RowKind
from hardware.topology import Topology
from serving.config.load import read_config
from serving.errors import ConfigError, ServingError
from serving.tools.paper import caching, paper_tables, reproduction, xdeepserve
from serving.tools.paper.experiment import CLOSE, Experiment, Findings, How, Relation, Row, Setting, quoted
from serving.tools.paper.paper_tables import error_table_markdown, report_markdown
from serving.tools.paper.registry import EXPERIMENTS, choose
from serving.tools.paper.reproduction import KNOWN_MISSES, UNEXPLAINED, Count, Miss, Reproduction, reason_for, reproduce
from serving.virtual import supernode
from serving.virtual.event_queue import EventQueue
from serving.virtual.network import Network
from tests.pages import ROOT


def row(
    published: float, ours: float | None, relation: Relation = "=", key: str = "row", kind: RowKind = RowKind.PREDICTED
) -> Row:
    if ours is None:
        return quoted(key, "a row", published, "ms", "somewhere")
    return Row(key, "a row", published, ours, "ms", How.RUN, "somewhere", kind, relation=relation)


def single(*rows: Row) -> Reproduction:
    experiment = Experiment("test", "a test", "by hand", lambda _setting: Findings(rows))
    return reproduce([experiment], Setting(quick=True))


@pytest.mark.parametrize(
    ("published", "ours", "relation", "error", "text"),
    [
        (100, 103, "=", 0.03, "+3.0 %"), (100, 97, "~", -0.03, "−3.0 %"), (94, 95, ">", 0.0, "holds"),
        (94, 47, ">", -0.5, "−50.0 %, broken"), (91, 90, "<", 0.0, "holds"),
        (80, 100, "<", 0.25, "+25.0 %, broken"), (0, 0, "=", 0.0, "0.0 %"), (0, 1, "=", math.inf, "+inf %"),
        (5, None, "=", None, ""),
    ],
)  # fmt: skip
def test_error_of_a_row(
    published: float, ours: float | None, relation: Relation, error: float | None, text: str
) -> None:
    one = row(published, ours, relation)
    assert one.error == (None if error is None else pytest.approx(error))
    assert paper_tables.error_text(one) == text


def test_unexplained_misses_and_broken_bounds() -> None:
    done = single(row(100, 120), row(100, 101, key="close"), row(7, None, key="quoted"))
    score = done.score
    assert score.predicted == Count(rows=2, close=1, near=1)
    assert (score.explained, score.unexplained, score.quoted) == (0, 1, 1)
    assert UNEXPLAINED in score.text
    assert f"**{UNEXPLAINED}**: a row (+20.0 %)." in report_markdown(done)

    broken, holds = row(94, 93.9, ">", key="broken"), row(94, 94.1, ">", key="holds")
    assert broken.error == pytest.approx(0, abs=CLOSE)
    assert not broken.within(CLOSE)
    assert holds.within(CLOSE)
    score = single(broken, holds).score
    assert score.predicted == Count(rows=2, close=1, near=1)
    assert score.unexplained == 1


def test_the_headline_counts_what_was_predicted_and_nothing_else() -> None:
    kinds = (RowKind.READ_BACK, RowKind.FITTED, RowKind.DERIVED)
    aside = [row(100, 100, key=str(kind), kind=kind) for kind in kinds]
    score = single(*aside, row(100, 101, key="a"), row(100, 108, key="b"), row(100, 150, key="c")).score
    assert score.headline == "Predicted: 1 of 3 rows within 5%, 2 within 10%"
    assert score.text.startswith(score.headline)
    assert (
        "apart from these, within 5%: 1 of 1 fitted, 1 of 1 derived by arithmetic, 1 of 1 inputs read back"
        in score.text
    )
    assert single(*aside).score.text.startswith("Predicted: no row; apart from these")


def test_a_row_has_the_kind_that_its_figures_allow() -> None:
    with pytest.raises(ServingError, match="is quoted, but ours is 5"):
        Row("row", "a row", 5, 5, "ms", How.RUN, "somewhere", RowKind.QUOTED)
    with pytest.raises(ServingError, match="is predicted, but ours is None"):
        Row("row", "a row", 5, None, "ms", None, "somewhere", RowKind.PREDICTED)
    with pytest.raises(TypeError, match="kind"):
        Row("row", "a row", 5, 5, "ms", How.RUN, "somewhere")  # type: ignore[call-arg] # no kind: refused


def test_every_row_of_every_experiment_has_its_kind(everything: Reproduction) -> None:
    rows = [row for part in everything.parts for row in part.findings.rows]
    assert {row.kind for row in rows} == set(RowKind)
    assert sum(count.rows for count in everything.score.counts.values()) + everything.score.quoted == len(rows)
    predicted = [row for row in rows if row.kind is RowKind.PREDICTED]
    assert everything.score.predicted.rows == len(predicted)
    assert everything.score.predicted.close == sum(abs(row.error or 0.0) <= CLOSE for row in predicted)


def test_what_was_taken_from_the_split_layout_moves_no_predicted_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its constants are the paper's own, so a row that depends on them is not a prediction."""
    before = {row.key: row for row in xdeepserve.run_split(Setting()).rows}
    for name in ("SCHEDULING_S", "MTP_LAYER_S"):
        monkeypatch.setattr(disaggregated, name, 1.5 * getattr(disaggregated, name))
    after = {row.key: row for row in xdeepserve.run_split(Setting()).rows}
    moved = {key for key, row in before.items() if row.ours != after[key].ours}
    assert {"iteration", "tpot", "rate"} <= moved
    assert not [key for key in moved if before[key].kind is RowKind.PREDICTED]


def test_the_context_cache_is_judged_at_the_rate_of_plan(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    def network(queue: EventQueue, topology: Topology, pool_bytes_per_s: float, *plane: Any) -> Network:
        rates.append(pool_bytes_per_s)
        return Network(queue, topology, pool_bytes_per_s, *plane)

    monkeypatch.setattr(supernode, "Network", network)
    supernode.Supernode(read_config(ROOT / "deploy" / "cloudmatrix384.toml").config, setting.cost, 0)
    assert rates == [pytest.approx(caching.plan_rate(setting.cost, "ub") * 1e9)]


def test_a_reason_covers_a_row_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reproduction.KNOWN_MISSES, ("test", "row"), Miss(0.3, "it rains"))
    assert reason_for("test", row(100, 104)) == ""
    assert reason_for("test", row(100, 129)) == "it rains"
    assert reason_for("test", row(100, 131)) == UNEXPLAINED
    done = single(row(100, 120))
    assert done.score.explained == 1
    assert "because it rains" in report_markdown(done)
    assert "+20.0 % ¹" in error_table_markdown(done)


def test_reasons_are_sentences_and_names_are_meant() -> None:
    for miss in KNOWN_MISSES.values():
        assert miss.reason
        assert not miss.reason.endswith(".")
        assert miss.within > 0.05

    assert choose([]) == EXPERIMENTS
    assert [one.name for one in choose(["fig23", "table5"])] == ["table5", "fig23"]
    with pytest.raises(ConfigError, match="did you mean table5"):
        choose(["tabel5"])
    with pytest.raises(ConfigError, match="--list"):
        choose(["zzzzzz"])
