"""Sample texts: the beginnings of a few, whatever the texts are."""

import json
from typing import Any

import pytest

from loadgen.metrics.samples import MOST_CHARS, SAMPLES, samples
from loadgen.record import RequestRecord
from tests.loadgen.metrics.stamps import failed, record


def kept(index: int, prompt: object, text: str = "answer", **fields: Any) -> RequestRecord:
    """A success that kept what was sent and what came."""
    return record([1.0], index=index, body=json.dumps({"prompt": prompt}).encode(), text=text, **fields)


def test_the_first_successes_that_kept_their_texts() -> None:
    found = samples(
        [
            kept(5, "later"),
            kept(0, "warm", warmup=True),
            kept(2, "second"),
            kept(1, "a later turn", turn=1),
            record([1.0], index=3),
            failed(index=4, body=b'{"prompt": "x"}', text=""),
            *(kept(index, "more") for index in range(6, 9)),
        ]
    )
    assert [(one.index, one.prompt, one.answer) for one in found] == [
        (2, "second", "answer"),
        (5, "later", "answer"),
        (6, "more", "answer"),
    ]
    assert len(found) == SAMPLES


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


def test_half_a_character_does_no_harm() -> None:
    (found,) = samples([kept(0, "fine", text="a\ud800b")])
    assert found.answer == "a?b"
    assert samples([record([1.0], index=0, body=b"\xff no JSON", text="t")])[0].prompt == ""
