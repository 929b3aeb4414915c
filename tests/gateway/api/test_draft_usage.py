"""What `usage.completion_tokens_details` says about guessed tokens."""

import pytest

from serving.values.jobs import SequenceUpdate
from serving.values.sequence import DraftUse, FinishReason
from tests.fakes.backend import output
from tests.gateway.api.batches import play
from tests.gateway.api.support import Harness, complete, events


def told(uses: list[DraftUse | None]) -> list[list[SequenceUpdate]]:
    more = [[output((5,), drafts=use)] for use in uses]
    return [
        [output((5,), cached_tokens=0)],
        *more,
        [output(finish_reason=FinishReason.LENGTH)],
    ]


def test_counts_by_position(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    play(harness, monkeypatch, *told([DraftUse(3, 3), None, DraftUse(2, 0), DraftUse(3, 1)]))
    usage = complete(harness.app, prompt="Once", max_tokens=9).json()["usage"]
    assert usage["completion_tokens_details"] == {
        "accepted_prediction_tokens": 4,
        "rejected_prediction_tokens": 4,
        "prediction_positions": [
            {"accepted": 2, "rejected": 1},
            {"accepted": 1, "rejected": 2},
            {"accepted": 1, "rejected": 1},
        ],
    }


def test_streams_tell_the_same(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    play(harness, monkeypatch, *told([DraftUse(1, 1)]))
    text = complete(harness.app, prompt="Once", max_tokens=9, stream=True, stream_options={"include_usage": True}).text
    usage = events(text)[-2]["usage"]
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] == 1


def test_without_guesses_there_is_no_such_key(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    play(harness, monkeypatch, *told([None]))
    assert "completion_tokens_details" not in complete(harness.app, prompt="Once", max_tokens=9).json()["usage"]
