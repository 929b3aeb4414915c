"""A recorded session of Codex on a real system, whose decode instance is killed inside an answer."""

import json
import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.agents.recording import Request, read
from tests.agents.scripted_server import MODEL
from tests.e2e.deaths import SLOW_STEPS
from tests.e2e.server import Server, wait_for
from tests.e2e.topology import small

SAME = "tests/gateway/api/tools/test_recorded_sessions.py::test_a_session"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.nightly(SAME)]

SCALE = 0.05
"""Of the prompts' generated texts: 2,800 to 6,300 tokens, most of them names and schemas of tools."""
GREEDY = {"temperature": 0, "ignore_eos": True, "max_output_tokens": 40}
KILLED_IN = 5
"""Number of the request whose answer the death interrupts."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = small(tmp_path_factory.mktemp("config"), MODEL, prefill=1, decode=1)
    text = config.read_text().replace("hbm_per_die_mib = 16", "hbm_per_die_mib = 128")
    text = text.replace("ub_memory_mib = 4\n", "ub_memory_mib = 64\n").replace(
        "_mib = 64\n\n[hard", "_mib = 512\n\n[hard"
    )
    config.write_text(text + SLOW_STEPS)
    with Server(config, "--context", "32768") as running:
        yield running


def test_a_death_inside_an_answer_changes_no_output(server: Server) -> None:
    session = [one for one in read("codex", SCALE) if one.thread == "main"]
    undisturbed = [answered(server, one) for one in session]
    for (_, before), (one, after) in pairwise(zip(session, undisturbed, strict=True)):
        if not one.restarts:
            cached, prompt = after["usage"]["input_tokens_details"]["cached_tokens"], before["usage"]["input_tokens"]
            assert cached > prompt - 2 * 16, "the cache held the whole previous prompt"
    again = [answered(server, one, kill=number == KILLED_IN) for number, one in enumerate(session)]
    assert [output(one) for one in again] == [output(one) for one in undisturbed]
    wait_for(lambda: len(server.replicas("decode")) == 1, "the instance is back", state=server.cluster)
    server.wait_idle()


def answered(server: Server, one: Request, *, kill: bool = False) -> dict[str, Any]:
    """The response to a request.

    Args:
        kill: send SIGKILL to the decode instance when the answer has begun.
    """
    sent = {**one.body, **GREEDY, "model": "tiny"}
    with httpx.stream("POST", f"{server.url}{one.path}", json=sent, headers=one.headers, timeout=300) as reply:
        assert reply.status_code == 200, reply.read()
        lines = reply.iter_lines()
        if kill:
            next(line for line in lines if "delta" in line)
            os.kill(server.replicas("decode")[0]["pid"], signal.SIGKILL)
        *_, last = (line for line in lines if line.startswith("data: "))
    event = json.loads(last.removeprefix("data: "))
    assert event["type"] == "response.incomplete", "by its own limit"
    response: dict[str, Any] = event["response"]
    return response


def output(response: dict[str, Any]) -> list[Any]:
    """Generated items of a response, without ids."""
    return [[one["type"], one.get("content"), one.get("arguments"), one.get("input")] for one in response["output"]]
