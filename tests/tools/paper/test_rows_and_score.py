"""Errors of rows, and what becomes of a row that misses."""

import math

import pytest

from serving.errors import ConfigError
from serving.tools.paper import known_misses, texts
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.known_misses import KNOWN_MISSES, UNEXPLAINED, Miss, reason_for
from serving.tools.paper.markdown import error_table_markdown, report_markdown
from serving.tools.paper.registry import EXPERIMENTS, choose
from serving.tools.paper.reproduction import Reproduction, reproduce
from serving.tools.paper.rows import Findings, How, Relation, Row
from serving.tools.paper.setting import Setting


def row(published: float, ours: float | None, relation: Relation = "=", key: str = "row") -> Row:
    how = How.QUOTED if ours is None else How.RUN
    return Row(key, "a row", published, ours, "ms", how, "somewhere", relation=relation)


def single(*rows: Row) -> Reproduction:
    experiment = Experiment("test", "a test", "by hand", lambda _setting: Findings(rows))
    return reproduce([experiment], Setting(quick=True))


@pytest.mark.parametrize(
    ("published", "ours", "relation", "error", "text"),
    [
        (100, 103, "=", 0.03, "+3.0 %"),
        (100, 97, "~", -0.03, "−3.0 %"),
        (94, 95, ">", 0.0, "holds"),
        (94, 47, ">", -0.5, "−50.0 %"),
        (91, 90, "<", 0.0, "holds"),
        (80, 100, "<", 0.25, "+25.0 %"),
        (0, 0, "=", 0.0, "0.0 %"),
        (0, 1, "=", math.inf, "+inf %"),
        (5, None, "=", None, ""),
    ],
)
def test_error_of_a_row(
    published: float, ours: float | None, relation: Relation, error: float | None, text: str
) -> None:
    one = row(published, ours, relation)
    assert one.error == (None if error is None else pytest.approx(error))
    assert texts.error_text(one) == text


def test_a_miss_without_a_reason_is_unexplained_everywhere() -> None:
    done = single(row(100, 120), row(100, 101, key="close"), row(7, None, key="quoted"))
    score = done.score
    assert (score.rows, score.close, score.explained, score.unexplained, score.quoted) == (2, 1, 0, 1, 1)
    assert UNEXPLAINED in score.text
    assert f"**{UNEXPLAINED}**: a row (+20.0 %)." in report_markdown(done)


def test_a_reason_covers_a_row_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known_misses.KNOWN_MISSES, ("test", "row"), Miss(0.3, "it rains"))
    assert reason_for("test", row(100, 104)) == ""
    assert reason_for("test", row(100, 129)) == "it rains"
    assert reason_for("test", row(100, 131)) == UNEXPLAINED
    done = single(row(100, 120))
    assert done.score.explained == 1
    assert "because it rains" in report_markdown(done)
    assert "+20.0 % ¹" in error_table_markdown(done)


def test_reasons_are_sentences_without_a_full_stop() -> None:
    for miss in KNOWN_MISSES.values():
        assert miss.reason
        assert not miss.reason.endswith(".")
        assert miss.within > 0.05


def test_choosing_keeps_our_order_and_names_what_was_meant() -> None:
    assert choose([]) == EXPERIMENTS
    assert [one.name for one in choose(["fig23", "table5"])] == ["table5", "fig23"]
    with pytest.raises(ConfigError, match="did you mean table5"):
        choose(["tabel5"])
    with pytest.raises(ConfigError, match="--list"):
        choose(["zzzzzz"])
