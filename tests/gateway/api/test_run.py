"""Backends at the edges of their contract, and the draft tokens in `usage`."""

from serving.gateway.api.settings import ServedModel
from serving.values.jobs import SequenceUpdate
from serving.values.sequence import DraftUse, FinishReason, TokenLogprobs
from tests.fakes.backend import output
from tests.gateway.api.batches import play
from tests.gateway.api.support import chat, complete, events


def ids(served: ServedModel, text: str) -> tuple[int, ...]:
    return tuple(served.tokenizer.encode(text, add_special_tokens=False))


def test_news_that_cross_a_stop_are_dropped(served: ServedModel) -> None:
    more = output(ids(served, " more"), finish_reason=FinishReason.LENGTH)
    batch = [output(ids(served, "a dog")), more]
    app, backend = play(served, batch)
    answer = chat(app, stop="dog").json()
    assert answer["choices"][0]["message"]["content"] == "a "
    assert answer["usage"]["completion_tokens"] == len(ids(served, "a dog"))
    assert backend.stopped == [0]
    assert backend.cancelled == 0


def test_stop_string_in_the_last_update_needs_no_stop(served: ServedModel) -> None:
    batch = [output(ids(served, "a dog"), finish_reason=FinishReason.LENGTH)]
    app, backend = play(served, batch)
    assert chat(app, stop="dog").json()["choices"][0]["finish_reason"] == "stop"
    assert backend.stopped == []


def test_backend_that_ends_early_is_an_engine_error(served: ServedModel) -> None:
    app, backend = play(served, [output(ids(served, "a"))])
    assert chat(app).status_code == 500
    assert backend.cancelled == 1


def test_finish_without_tokens_ends_the_choice(served: ServedModel) -> None:
    app, _ = play(served, [output(ids(served, "a"))], [output(finish_reason=FinishReason.LENGTH)])
    choice = chat(app).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("a", "length")


def test_impossible_tokens_have_a_finite_logprob(served: ServedModel) -> None:
    (token,) = ids(served, "a")
    worst = TokenLogprobs(token, float("-inf"), ((token, float("-inf")),))
    done = output((token,), logprobs=(worst,), prompt_logprobs=(worst,), finish_reason=FinishReason.LENGTH)
    app, _ = play(served, [done])
    entry = chat(app, logprobs=True, top_logprobs=1).json()["choices"][0]["logprobs"]["content"][0]
    assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] == -9999.0
    app, _ = play(served, [done])
    choice = complete(app, logprobs=1, prompt=[token, token], prompt_logprobs=0).json()["choices"][0]
    assert choice["logprobs"]["token_logprobs"] == [-9999.0]
    assert choice["prompt_logprobs"][1][str(token)]["logprob"] == -9999.0


def told(uses: list[DraftUse | None]) -> list[list[SequenceUpdate]]:
    more = [[output((5,), drafts=use)] for use in uses]
    return [[output((5,), cached_tokens=0)], *more, [output(finish_reason=FinishReason.LENGTH)]]


def test_counts_by_position(served: ServedModel) -> None:
    app, _ = play(served, *told([DraftUse(3, 3), None, DraftUse(2, 0), DraftUse(3, 1)]))
    usage = complete(app, prompt="Once", max_tokens=9).json()["usage"]
    assert usage["completion_tokens_details"] == {
        "accepted_prediction_tokens": 4,
        "rejected_prediction_tokens": 4,
        "prediction_positions": [
            {"accepted": 2, "rejected": 1},
            {"accepted": 1, "rejected": 2},
            {"accepted": 1, "rejected": 1},
        ],
    }


def test_streams_tell_the_same(served: ServedModel) -> None:
    app, _ = play(served, *told([DraftUse(1, 1)]))
    text = complete(app, prompt="Once", max_tokens=9, stream=True, stream_options={"include_usage": True}).text
    usage = events(text)[-2]["usage"]
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] == 1


def test_without_guesses_there_is_no_such_key(served: ServedModel) -> None:
    app, _ = play(served, *told([None]))
    assert "completion_tokens_details" not in complete(app, prompt="Once", max_tokens=9).json()["usage"]
