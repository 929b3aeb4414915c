"""One stream across the loss of its replica: its selection, and its description."""

from pathlib import Path
from typing import Any

import pytest

from serving.tools.chaos.asks import ChoiceSoFar, StreamedAnswer
from serving.tools.chaos.chaos_page import report_page
from serving.tools.chaos.findings import find
from serving.tools.chaos.hit_stream import as_value, drawn_stream, stream_chart, stream_text
from tests.loadgen.report.browser import checked
from tests.tools.chaos.made import killed_stream as stream
from tests.tools.chaos.made import loss, run_of


def test_the_stream_with_most_on_both_sides_is_drawn() -> None:
    run = run_of(stream(2, 90), stream(50, 40), stream(90, 2), events=(loss(1.99),))
    found = drawn_stream(run)
    assert found is not None
    assert found.number == 1
    assert (found.hits[0].tokens, found.points[-1][1]) == (50, 90)
    assert found.spans == (("p#1", "d#1"), ("p#2", "d#2"))
    assert found.hits[0].pause_s == pytest.approx(0.31)


def test_it_says_which_replica_by_which_signal_and_what_came_of_it() -> None:
    found = drawn_stream(run_of(stream(50, 40), events=(loss(1.99),)))
    assert found is not None
    assert stream_text(found) == (
        "Request 0 (greedy) was sent at 0.500 s. SIGKILL hit d#1 at 1.99 s, when the client had 50 tokens; the next "
        "one came 310 ms later, from p#2 → d#2. All 90 tokens are those of the undisturbed answer."
    )
    chart = stream_chart(found)
    assert [line.name for line in chart.lines] == ["p#1 → d#1", "p#2 → d#2"]
    first, second = (line.values for line in chart.lines)
    assert [value for value in first if value is not None] == [float(count) for count in range(51)]
    assert [value for value in second if value is not None] == [float(count) for count in range(51, 91)]
    assert [(mark.name, mark.xs) for mark in chart.marks] == [
        ("SIGKILL to d#1", [1.99]),
        ("next token, 310 ms later", [pytest.approx(2.3)]),
    ]
    value = as_value(found)
    assert value["hits"] == [{"fault": 1, "tokens": 50, "last_s": 1.98, "next_s": 2.3}]
    assert value["replicas"] == [["p#1", "d#1"], ["p#2", "d#2"]]


def test_a_kill_is_preferred_to_a_freeze_which_is_better_than_nothing() -> None:
    frozen = stream(50, 40, replicas=("p#1", "d#3", "d#4"))
    killed = stream(80, 5)
    both = (loss(1.99, "freeze", "d#3"), loss(2.59, number=2))
    found = drawn_stream(run_of(frozen, killed, events=both))
    assert found is not None
    assert found.number == 1
    found = drawn_stream(run_of(frozen, events=both))
    assert found is not None
    assert "SIGSTOP hit d#3" in stream_text(found)
    assert found.spans == (("p#1", "d#3"), ("d#4",))

    found = drawn_stream(run_of(stream(50, 40, replicas=("d#2", "d#1")), events=(loss(1.99),)))
    assert found is not None
    assert "from replicas that it knew" in stream_text(found)

    run = run_of(stream(50, 40), events=(loss(1.99),))
    run.differences[0] = "choice 0: token 3 is 5, not 6"
    assert drawn_stream(run) is None


def other(**changes: Any) -> StreamedAnswer:
    answer = stream(50, 40)
    for name, value in changes.items():
        setattr(answer, name, value)
    return answer


@pytest.mark.parametrize(
    "answer",
    [
        other(outcome="failed"), other(usage={}), other(replicas=()), other(replicas=("p#1", "d#9")),
        other(ended_s=1001.5), other(choices=[ChoiceSoFar(), ChoiceSoFar()]), stream(50, 40, pause_s=0.03),
    ],
    ids=["failed", "never resumed", "names not told", "elsewhere", "ended before", "two choices", "not stopped"],
)  # fmt: skip
def test_what_was_not_stopped_by_a_loss_is_not_drawn(answer: StreamedAnswer) -> None:
    assert drawn_stream(run_of(answer, events=(loss(1.99),))) is None


@pytest.mark.timeout(120)
def test_every_plot_is_drawn(tmp_path: Path) -> None:
    run = run_of(stream(50, 40), events=(loss(1.99),))
    figures = ["stream", "faults", "flight", "tokens", "resumed", "replicas"]
    for seen in checked(report_page(run, find(run)), tmp_path, figures):
        inked = seen["figures"]["stream"]["colours"]
        assert all(seen["palette"][name] in inked for name in ("blue", "violet")), "a curve for each replica"
