"""Request bodies of both endpoints."""

import json

import pytest

from loadgen.endpoint import Backend, Endpoint
from loadgen.errors import UsageError
from loadgen.plan import PromptMessage, Role, Turn

COMPLETIONS = Endpoint(base_url="http://h", path="/v1/completions", model="m")
CHAT = Endpoint(base_url="http://h", path="/v1/chat/completions", model="m", backend=Backend.CHAT)


def body(endpoint: Endpoint, turn: Turn, history: list[PromptMessage] | str = "") -> dict:
    """The body as JSON."""
    return json.loads(endpoint.body(turn, history))


def test_completions() -> None:
    assert body(COMPLETIONS, Turn(prompt="hi", output_tokens=5)) == {
        "model": "m", "prompt": "hi", "max_tokens": 5, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert body(COMPLETIONS, Turn(prompt=[1, 2], output_tokens=5))["prompt"] == [1, 2]
    assert COMPLETIONS.body(Turn(prompt="hi", output_tokens=5, body=b"{}")) == b"{}"
    endpoint = Endpoint(base_url="", path="", model="m", extra={"top_k": 3, "ignore_eos": None}, stream=False)
    assert body(endpoint, Turn(prompt="x", output_tokens=1)) == {
        "model": "m",
        "prompt": "x",
        "max_tokens": 1,
        "top_k": 3,
    }


def test_chat_and_what_it_does_not_take() -> None:
    sent = body(CHAT, Turn(prompt="hi", output_tokens=5))
    assert sent["messages"] == [{"role": "user", "content": "hi"}]
    assert sent["max_completion_tokens"] == 5
    assert "prompt" not in sent

    turn = Turn(prompt=[1, 2], output_tokens=1)
    with pytest.raises(UsageError, match="--backend openai"):
        CHAT.body(turn)
    with pytest.raises(UsageError, match="text prompts"):
        COMPLETIONS.body(turn, "history")


def test_history_is_messages_or_text() -> None:
    first, second = Turn(prompt="one", output_tokens=1), Turn(prompt="two", output_tokens=1)
    history = CHAT.extend("", first, "answer")
    assert [(m["role"], m["content"]) for m in body(CHAT, second, history)["messages"]] == [
        ("user", "one"),
        ("assistant", "answer"),
        ("user", "two"),
    ]
    first, second = Turn(prompt="one ", output_tokens=1), Turn(prompt=" two", output_tokens=1)
    assert body(COMPLETIONS, second, COMPLETIONS.extend("", first, "answer"))["prompt"] == "one answer two"
    turn = Turn(prompt=[PromptMessage(Role.SYSTEM, "be brief"), PromptMessage(Role.USER, "why")], output_tokens=1)
    assert body(COMPLETIONS, turn)["prompt"] == "be brief\nwhy"
