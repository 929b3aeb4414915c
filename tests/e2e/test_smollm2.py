"""A real model end to end: correct responses on every path of a request, and when a decode instance dies."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.deaths import BACK_S
from tests.e2e.server import Server, wait_for
from tests.model.smollm2 import smollm2

SAME = "tests/e2e/test_two_nodes.py::test_outputs_are_token_exact_and_handoffs_cross_nodes"
pytestmark = [pytest.mark.slow, pytest.mark.downloads, pytest.mark.timeout(900), pytest.mark.nightly(SAME)]

QUESTION = "What is the capital of Japan?"
ANSWER = "The capital of Japan is Tokyo."
"""Each of its tokens leads by a logit; one about France leads by a tenth, which kernels in bfloat16 may turn."""
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
_CONFIG = """
[model]
path = "{folder}"
name = "smollm2"
tools = "hermes"

[engine]
threads = 1

[cluster]
dashboard_port = 0

[hardware]
hbm_per_die_mib = 320

[[cluster.nodes]]
npus = 8
ub_memory_mib = 512

[prefill]
replicas = 1
npus_per_instance = 1
ub_memory_mib = 64

[decode]
replicas = 2
npus_per_instance = 1
ub_memory_mib = 64

[kvcache]
replicas = 1
ub_memory_mib = 64

[chaos]
enabled = true
least_step_s = 0.02
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = tmp_path_factory.mktemp("config") / "smollm2.toml"
    config.write_text(_CONFIG.format(folder=smollm2()))
    with Server(config) as running:
        yield running


def chat(question: str, **more: Any) -> dict[str, Any]:
    """A greedy conversation of one question."""
    return {"model": "smollm2", "messages": [{"role": "user", "content": question}], "temperature": 0, **more}


def test_it_answers_a_question(server: Server) -> None:
    answer = server.post("/v1/chat/completions", chat(QUESTION, n=2, max_tokens=40))
    assert [choice["message"]["content"] for choice in answer["choices"]] == [ANSWER] * 2
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}


def test_it_finds_its_prompt_again(server: Server) -> None:
    answer = server.post("/v1/chat/completions", chat(QUESTION, max_tokens=40))
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_it_calls_a_tool(server: Server) -> None:
    body = chat("What is the weather in Paris?", max_tokens=120, tools=[WEATHER], parallel_tool_calls=False)
    answer = server.post("/v1/chat/completions", body | {"tool_choice": "required"})
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


def test_a_stream_goes_on_when_its_decode_instance_is_killed(server: Server) -> None:
    question = chat("Tell me a long story about a dog.", max_tokens=150, ignore_eos=True)
    undisturbed = server.post("/v1/chat/completions", question)["choices"][0]["message"]["content"]
    pids = {one["replica"]: one["pid"] for one in server.replicas("decode")}

    async def scene() -> str:
        text, killed = "", False
        async with httpx.AsyncClient(timeout=120) as client:
            stream = client.stream("POST", f"{server.url}/v1/chat/completions", json=question | {"stream": True})
            async with stream as response:
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    for choice in json.loads(line.removeprefix("data: "))["choices"]:
                        text += choice["delta"].get("content") or ""
                    if text and not killed:
                        busy = [one for one in server.replicas("decode") if one["running"]]
                        if busy:
                            os.kill(busy[0]["pid"], signal.SIGKILL)
                            killed = True
        assert killed, "the stream ended before its instance was found"
        return text

    assert asyncio.run(scene()) == undisturbed
    wait_for(lambda: len(server.replicas("decode")) == 2 and pids != now(server), "another one", BACK_S)
    answer = server.post("/v1/chat/completions", chat(QUESTION, max_tokens=40))
    assert answer["choices"][0]["message"]["content"] == ANSWER


def now(server: Server) -> dict[str, int]:
    """Current process of each decode replica."""
    return {one["replica"]: one["pid"] for one in server.replicas("decode")}
