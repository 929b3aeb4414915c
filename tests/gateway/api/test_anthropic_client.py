"""The real `anthropic` client against uvicorn on loopback."""

from collections.abc import Iterator

import anthropic
import pytest
from anthropic.types import MessageParam

from serving.errors import EngineError, OverloadedError
from tests.gateway.api.support import Harness

TURNS: list[MessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def harness(shared: tuple[Harness, str]) -> Harness:
    harness = shared[0].renewed()
    harness.script_of = lambda _: harness.say("Once upon a time 你好", cached_tokens=3)
    return harness


@pytest.fixture
def client(shared: tuple[Harness, str], harness: Harness) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=shared[1], api_key="key", max_retries=0) as client:
        yield client


def test_whole(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(model="tiny", max_tokens=50, messages=TURNS, system="Be brief.")
    assert [block.text for block in answer.content if block.type == "text"] == ["Once upon a time 你好"]
    assert answer.stop_reason == "end_turn"
    assert answer.usage.cache_read_input_tokens == 3
    counted = client.messages.count_tokens(model="tiny", messages=TURNS, system="Be brief.")
    assert counted.input_tokens == answer.usage.input_tokens + 3


def test_streamed(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="tiny", max_tokens=50, messages=TURNS, stop_sequences=[" time"]) as stream:
        text = "".join(stream.text_stream)
        whole = stream.get_final_message()
    assert text == "Once upon a"
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", " time")
    assert whole.usage.output_tokens > 0


def test_beta_route_and_bearer(shared: tuple[Harness, str], harness: Harness) -> None:
    with anthropic.Anthropic(base_url=shared[1], auth_token="key", max_retries=0) as client:
        answer = client.beta.messages.create(model="tiny", max_tokens=2, messages=[{"role": "user", "content": "hi"}])
    assert answer.stop_reason == "max_tokens"


def test_errors_become_the_clients_exceptions(
    shared: tuple[Harness, str], harness: Harness, client: anthropic.Anthropic
) -> None:
    with pytest.raises(anthropic.NotFoundError, match="claude-x"):
        client.messages.create(model="claude-x", max_tokens=5, messages=TURNS)
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(model="tiny", max_tokens=5, messages=TURNS)
    harness.backend.refuse = OverloadedError("full", retry_after_s=1)
    with pytest.raises(anthropic.APIStatusError) as full:
        client.messages.create(model="tiny", max_tokens=5, messages=TURNS)
    assert full.value.status_code == 529
    harness.backend.refuse = None
    harness.script_of = lambda _: harness.say("Once upon", fail_after=1, error=EngineError("x"))
    with (
        pytest.raises(anthropic.APIError, match="failed inside the server"),
        client.messages.stream(model="tiny", max_tokens=5, messages=TURNS) as stream,
    ):
        list(stream)
