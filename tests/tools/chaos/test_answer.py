"""What counts as the same answer."""

from copy import deepcopy
from typing import Any

import pytest

from serving.tools.chaos.answer import StreamedAnswer, difference, logprob_distance
from serving.tools.chaos.asks import CHAT, COMPLETIONS, Ask, make_asks
from serving.tools.chaos.scenario import LoadConfig

ASK = Ask(0, "test", COMPLETIONS, {"stream": True, "max_tokens": 8, "n": 2})


def piece(index: int, tokens: list[int], text: str = "x", **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": text, "token_ids": tokens, "finish_reason": None, **fields}]}


def answered() -> StreamedAnswer:
    """Two choices, one with log-probabilities."""
    answer = StreamedAnswer(ASK, 0.0)
    answer.take(piece(0, [1, 2], logprobs={"token_logprobs": [None, -0.5]}), 1.0)
    answer.take(piece(1, [7], finish_reason="stop"), 1.1)
    answer.take(piece(0, [3], finish_reason="length", logprobs={"token_logprobs": [-0.25]}), 1.2)
    answer.take({"choices": [], "usage": {"completion_tokens": 4, "resumptions": 2}}, 1.3)
    answer.outcome = "finished"
    return answer


def test_pieces_add_up() -> None:
    answer = answered()
    assert answer.complete
    assert answer.resumptions == 2
    first, second = answer.choices
    assert (first.tokens, first.text, first.finish, first.logprobs) == ([1, 2, 3], "xx", "length", [-0.5, -0.25])
    assert first.arrivals == [(1.0, 2), (1.2, 1)]
    assert (second.tokens, second.finish) == ([7], "stop")

    answer = StreamedAnswer(ASK, 0.0)
    answer.take(piece(0, [5], logprobs={"content": [{"token": "a", "logprob": -1.5}]}), 1.0)
    assert answer.choices[0].logprobs == [-1.5]


@pytest.mark.parametrize(
    "body",
    [
        {"index": 0, "text": "ab", "token_ids": [5]},
        {"index": 0, "delta": {"content": "ab"}, "token_ids": [5]},
        {"index": 0, "message": {"content": "ab"}, "token_ids": [5]},
        {
            "index": 0,
            "delta": {"tool_calls": [{"id": "x", "function": {"name": "a"}}, {"function": {"arguments": "b"}}]},
            "token_ids": [5],
        },
    ],
)
def test_all_wire_forms_have_text(body: dict[str, Any]) -> None:
    answer = StreamedAnswer(ASK, 0.0)
    answer.take({"choices": [body]}, 1.0)
    assert (answer.choices[0].text, answer.choices[0].tokens) == ("ab", [5])


def test_what_makes_no_difference() -> None:
    assert difference(answered(), answered()) is None
    other = answered()
    other.choices[0].arrivals = [(9.0, 3)]
    other.usage = {}
    assert difference(other, answered()) is None
    other = answered()
    other.choices[0].logprobs[0] += 1e-5
    assert difference(other, answered()) is None
    assert logprob_distance(other, answered()) == pytest.approx(1e-5, rel=1e-3)
    cut = answered()
    cut.outcome = "cancelled"
    cut.choices[0].tokens = [1, 2]
    cut.choices[0].finish = None
    cut.choices[1].tokens = []
    assert difference(cut, answered()) is None
    cut.choices[0].tokens = [1, 8]
    assert difference(cut, answered()) == "choice 0: token 1 is 8, not 2"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: c.tokens.__setitem__(1, 9), "choice 0: token 1 is 9, not 2"),
        (lambda c: c.tokens.append(3), "choice 0: 4 tokens, not 3"),
        (lambda c: c.tokens.pop(), "choice 0: 2 tokens, not 3"),
        (lambda c: setattr(c, "finish", "stop"), "choice 0: ended by stop, not length"),
        (lambda c: setattr(c, "text", "xy"), "choice 0: equal tokens, other text"),
        (lambda c: c.logprobs.pop(), "choice 0: 1 log-probabilities, not 2"),
        (lambda c: c.logprobs.__setitem__(0, -0.6), "choice 0: log-probabilities differ by 0.1"),
    ],
)
def test_every_difference_is_told(change: Any, told: str) -> None:
    other = answered()
    change(other.choices[0])
    assert difference(other, answered()) == told


def test_compacting_keeps_what_findings_need() -> None:
    answer = answered()
    before = deepcopy(answer)
    answer.compact()
    assert [choice.tokens for choice in answer.choices] == [choice.tokens for choice in before.choices]
    assert [choice.arrivals for choice in answer.choices] == [choice.arrivals for choice in before.choices]


def test_asks_are_a_function_of_the_seed_and_use_everything() -> None:
    load = LoadConfig(asks=30)
    assert make_asks(load, 4, "m") == make_asks(load, 4, "m")
    assert make_asks(load, 4, "m") != make_asks(load, 5, "m")
    assert [ask.number for ask in make_asks(load, 4, "m")] == list(range(30))

    asks = make_asks(LoadConfig(asks=14, tools=True), 0, "m")
    bodies = [ask.body for ask in asks]
    assert {ask.path for ask in asks} == {COMPLETIONS, CHAT}
    assert {ask.choices for ask in asks} == {1, 2, 3}
    assert {ask.streamed for ask in asks} == {True, False}
    penalties = ("presence_penalty", "frequency_penalty", "repetition_penalty")
    for field in ("seed", "stop", "logprobs", "structured_outputs", "tools", *penalties):
        assert any(field in body for body in bodies), field
    assert any(body["temperature"] == 0 for body in bodies)
    assert max(len(body.get("prompt", "")) for body in bodies) > 2000, "long prompts too"
    assert all(body["return_token_ids"] for body in bodies)
    assert all("seed" in body or body["temperature"] == 0 for body in bodies), "each is repeatable"
    assert not any("tools" in ask.body for ask in make_asks(LoadConfig(asks=14), 0, "m")), (
        "only where a model knows how"
    )


def test_a_log_probability_that_is_no_number_is_a_difference() -> None:
    def told(first: float | None) -> StreamedAnswer:
        answer = StreamedAnswer(ASK, 0.0)
        answer.take(piece(0, [1, 2], finish_reason="length", logprobs={"content": [{"logprob": first}]}), 1.0)
        return answer

    assert "differ by inf" in str(difference(told(float("nan")), told(-1.0)))
    assert difference(told(float("-inf")), told(float("-inf"))) is None
    with pytest.raises(TypeError):
        told(None)
