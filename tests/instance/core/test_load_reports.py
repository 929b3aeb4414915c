"""Times of the reports that changes of an instance's load cause."""

import pytest

from serving.ids import SequenceId
from serving.instance.core.load_reports import LEAST_GAP_S, LoadReports, changes_load, report_age_s
from serving.values.news import Leaving, Lost, News, Tokens
from serving.values.sequence import FinishReason

NAME = SequenceId("s@1")


def test_a_change_is_reported_at_once_and_many_changes_once_in_a_gap() -> None:
    reports = LoadReports()
    assert reports.on_change(2, 5.0) == 0.0
    assert reports.on_change(2, 5.0) is None, "that report includes it"
    reports.on_report(5.0)
    pause_s = reports.on_change(2, 5.0 + LEAST_GAP_S / 4)
    assert pause_s == pytest.approx(LEAST_GAP_S * 3 / 4)
    reports.on_report(5.0 + LEAST_GAP_S / 2)
    assert not reports.due, "a regular report came first"


def test_a_single_gateway_gets_regular_reports_only() -> None:
    reports = LoadReports()
    assert reports.on_change(1, 5.0) is None
    assert not reports.due
    assert (report_age_s(0.1, 1), report_age_s(0.1, 2)) == (0.1, LEAST_GAP_S)


@pytest.mark.parametrize(
    ("news", "changes"),
    [
        (Tokens(NAME, 0, (7,), cached_tokens=0), True),
        (Tokens(NAME, 1, (7,)), False),
        (Tokens(NAME, 1, (7,), finish_reason=FinishReason.STOP), True),
        (Lost(NAME, "why"), True),
        (Leaving(NAME, handoff=False), False),
    ],
)
def test_computed_prompts_and_ends_change_the_load(news: News, changes: bool) -> None:
    assert changes_load(news) is changes
