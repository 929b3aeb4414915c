"""Each definition on stamps with results computed by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.metrics.definitions import BY_NAME, metrics_table
from loadgen.metrics.goodput import evaluate, parse_slo
from loadgen.metrics.samples import MOST_CHARS, SAMPLES, samples
from loadgen.record import RequestOutcome, RequestRecord
from tests.loadgen.metrics.stamps import failed, record

README = Path(__file__).parents[3] / "loadgen/README.md"

# Due at 1.0, released at 1.25, sent at 1.5; four chunks; the response ends (usage chunk) at 4.25.
FOUR = record([2.0, 2.5, 3.5, 4.0], connect_s=0.125, server_times={"queue": 0.1, "ttft": 0.3}, cached_tokens=8)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ttft", [1.0]), ("ttft_sent", [0.5]), ("ttfo", [1.0]), ("tpot", [2.0 / 3]), ("itl", [0.5, 1.0, 0.5]),
        ("itl_token", [0.5, 1.0, 0.5]), ("e2e", [3.0]), ("e2e_sent", [2.5]), ("ntpot", [0.75]),
        ("server_queue", [0.1]), ("server_ttft", [0.3]), ("lateness", [0.25]), ("client_queue", [0.25]),
        ("connect", [0.125]), ("input_tokens", [10]), ("output_tokens", [4]), ("cached_tokens", [8]),
    ],
)  # fmt: skip
def test_four_chunks_of_one_token(name: str, expected: list[float]) -> None:
    assert BY_NAME[name].values(FOUR).tolist() == pytest.approx(expected)


def values(name: str, one: RequestRecord) -> list[float]:
    """Values as plain numbers."""
    return BY_NAME[name].values(one).tolist()


def test_every_definition_is_in_the_readme() -> None:
    assert len(BY_NAME) == 17
    text = README.read_text(encoding="utf-8")
    start = "<!-- metrics-table: python -m loadgen.metrics -->\n"
    printed = text.partition(start)[2].partition("\n<!-- /metrics-table -->")[0]
    assert printed == metrics_table(), "README out of step: paste what `python -m loadgen.metrics` prints"


def test_tokens_of_chunks_are_not_guessed() -> None:
    """Gaps 1.0 (two tokens) and 0.5 (one token); usage reports 4 tokens in all."""
    one = record([2.0, 3.0, 3.5], tokens=[1, 2, 1], output_tokens=4)
    assert values("itl", one) == [1.0, 0.5]
    assert values("itl_token", one) == [0.5, 0.5, 0.5]
    assert values("tpot", one) == [0.5]
    assert values("itl_token", record([2.0, 3.0], output_tokens=5)) == []
    assert values("tpot", record([2.0, 3.0, 4.0], output_tokens=None)) == [1.0]
    assert values("output_tokens", record([2.0, 3.0], output_tokens=None)) == []
    assert values("tpot", record([2.0], output_tokens=4)) == [0.0]


def test_what_never_came_has_no_value() -> None:
    one = record([2.0])
    assert values("tpot", one) == []
    assert values("itl", one) == []
    assert values("ttft", one) == [1.0]
    one = record([], output_tokens=4, ended_s=3.0)
    assert values("e2e", one) == [2.0]
    assert values("ttft", one) == values("tpot", one) == values("itl", one) == []
    one = record([], started_s=None, ended_s=5.0, output_tokens=None)
    assert values("ttft_sent", one) == values("lateness", one) == values("e2e_sent", one) == []
    assert values("client_queue", one) == [0.25]
    one = record([2.0, 2.5], first_answer_s=2.5)
    assert values("ttft", one) == [1.0]
    assert values("ttfo", one) == [1.5]


def kept(index: int, prompt: object, text: str = "answer", **fields: Any) -> RequestRecord:
    """A success with its sent and received text."""
    return record([1.0], index=index, body=json.dumps({"prompt": prompt}).encode(), text=text, **fields)


def test_the_first_successes_that_kept_their_texts() -> None:
    found = samples(
        [
            kept(5, "later"), kept(0, "warm", warmup=True), kept(2, "second"), kept(1, "a later turn", turn=1),
            record([1.0], index=3), failed(index=4, body=b'{"prompt": "x"}', text=""),
            *(kept(index, "more") for index in range(6, 9)),
        ]
    )  # fmt: skip
    assert [(one.index, one.prompt, one.answer) for one in found] == [
        (2, "second", "answer"),
        (5, "later", "answer"),
        (6, "more", "answer"),
    ]
    assert len(found) == SAMPLES

    (half,) = samples([kept(0, "fine", text="a\ud800b")])
    assert half.answer == "a?b"
    assert samples([record([1.0], index=0, body=b"\xff no JSON", text="t")])[0].prompt == ""


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("x" * MOST_CHARS, "x" * MOST_CHARS),
        ("x" * (MOST_CHARS + 1), "x" * MOST_CHARS + "…"),
        ([1, 2, 3], "token ids 1 2 3"),
        (list(range(100)), f"token ids {' '.join(map(str, range(24)))} …"),
        (None, ""),
    ],
)
def test_only_a_beginning_is_kept(prompt: object, shown: str) -> None:
    assert samples([kept(0, prompt)])[0].prompt == shown


def test_both_ways_of_writing() -> None:
    assert parse_slo(["ttft=500ms,tpot=50ms"]) == {"ttft": 0.5, "tpot": 0.05}
    assert parse_slo(["ttft:500", "tpot:50", "e2el:5000"]) == {"ttft": 0.5, "tpot": 0.05, "e2e": 5.0}
    assert parse_slo(["ttft=2"]) == {"ttft": 2.0}


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttfb=1s", "ttft=fast", "ttft=0", "ttft=1s,ttft=2s", "e2e=1s,e2el=2s", "ttft=1.2.3s", "ttft=."]
)
def test_mistakes(text: str) -> None:
    with pytest.raises(UsageError, match="--slo"):
        parse_slo([text])


def test_who_is_good() -> None:
    """TTFT 1.0 and TPOT 0.5 for the first; the second is too late, the third too slow, the fourth failed."""
    records = [
        record([2.0, 2.5, 3.0]), record([2.6, 3.1, 3.6]), record([2.0, 3.0, 4.0]), failed(),
        record([2.0], outcome=RequestOutcome.CANCELLED),
        record([2.0], outcome=RequestOutcome.UNFINISHED, ended_s=2.0), record([2.0]),
    ]  # fmt: skip
    found = evaluate(records, {"ttft": 1.5, "tpot": 0.75})
    assert (found.good, found.counted, found.untestable) == (2, 5, 1)
    assert found.attainment == pytest.approx(0.4)
    assert found.each == {"ttft": pytest.approx(0.6), "tpot": pytest.approx(0.6)}
    assert found.wilson95[0] < 0.4 < found.wilson95[1]
    assert evaluate([record([2.0])], {"ttft": 0.9}).good == 0
    assert evaluate([record([2.0], intended_s=1.5)], {"ttft": 0.9}).good == 1
    found = evaluate([record([], ended_s=9.0), record([2.0])], {"ttft": 1.5})
    assert (found.good, found.untestable) == (2, 1)
    assert evaluate([], {"ttft": 1.0}).attainment == 0.0


def cut(chunks: Sequence[float] = (), **fields: Any) -> RequestRecord:
    """Due at 1.0, planned for 11 tokens, and cut by the end of the run at 6.0."""
    usual: dict[str, Any] = {
        "outcome": RequestOutcome.UNFINISHED,
        "ended_s": 6.0,
        "output_tokens": None,
        "planned_output_tokens": 11,
    }
    return record(chunks, **(usual | fields))


@pytest.mark.parametrize(
    ("late", "targets"),
    [
        (cut(), {"ttft": 4.5}), (cut(started_s=None), {"ttft": 4.5}), (cut([2.5]), {"ttft": 1.0}),
        (cut([2.5]), {"e2e": 4.5}), (cut([2.5, 3.0]), {"itl": 2.5}), (cut([2.0, 3.0]), {"tpot": 0.35}),
        (cut([2.5], first_answer_s=None), {"ttfo": 4.5}),
    ],
)  # fmt: skip
def test_what_the_end_of_the_run_cut_is_missed_if_it_was_too_late_by_then(
    late: RequestRecord, targets: dict[str, float]
) -> None:
    found = evaluate([record([2.0]), late], targets | {"ntpot": 100.0})
    assert (found.good, found.counted) == (1, 2)
    assert found.each == dict.fromkeys(targets, 0.5) | {"ntpot": 1.0}


@pytest.mark.parametrize(
    ("open_", "targets"),
    [
        (cut(), {"ttft": 5.5, "e2e": 5.5}),
        (cut([2.0, 3.0]), {"ttft": 1.5, "tpot": 0.45, "itl": 3.5}),
        (cut([2.0, 3.0], planned_output_tokens=None), {"tpot": 0.1}),
        (cut(ended_s=None), {"ttft": 0.5}),
        (cut(conduct="disconnect"), {"ttft": 0.5}),
    ],
)
def test_what_was_cut_while_it_could_still_be_good_says_nothing(
    open_: RequestRecord, targets: dict[str, float]
) -> None:
    assert evaluate([open_], targets).counted == 0
