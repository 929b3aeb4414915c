import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from array import array
from collections.abc import Coroutine, Iterator
from itertools import pairwise
from typing import Any, TypeVar

import pytest
import uvloop

from loadgen.client import Digest, Exchange, LoadClient
from loadgen.endpoint import DEFAULT_PATHS, Backend, Endpoint
from loadgen.errors import LoadgenError
from loadgen.plan import Behaviour, Conduct, Turn
from loadgen.record import RequestOutcome
from loadgen.selftest import BlastServer, start_blast_server
from tests.loadgen.client.ended import digest

pytestmark = pytest.mark.real_time

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


async def ask(
    server: BlastServer,
    tokens: int,
    count: int = 1,
    *,
    backend: Backend = Backend.COMPLETIONS,
    stream: bool = True,
    behaviour: Behaviour | None = None,
) -> list[tuple[Exchange, Digest]]:
    """Send this many requests at once."""
    endpoint = Endpoint(
        base_url=server.url, path=DEFAULT_PATHS[backend], model=server.model, backend=backend, stream=stream
    )
    client = LoadClient(endpoint, t0=time.monotonic())
    body = endpoint.body(Turn(prompt="one two three", output_tokens=tokens))
    try:
        chosen = behaviour or Behaviour()
        made = await asyncio.gather(*(client.exchange(client.prepare(body, f"r-{n}"), chosen) for n in range(count)))
    finally:
        await client.close()
    return [(exchange, digest(exchange, tokens)) for exchange in made]


def get(server: BlastServer, path: str, **headers: str) -> str:
    request = urllib.request.Request(server.url + path, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        body: bytes = response.read()
    return body.decode()


@pytest.fixture(scope="module")
def blast() -> Iterator[BlastServer]:
    with start_blast_server() as server:
        yield server


@pytest.mark.parametrize("backend", list(Backend))
@pytest.mark.parametrize("stream", [True, False])
def test_every_answer_has_the_length_asked_for(blast: BlastServer, backend: Backend, stream: bool) -> None:
    for exchange, found in run(ask(blast, 33, 20, backend=backend, stream=stream)):
        assert found.outcome is RequestOutcome.OK
        assert (found.input_tokens, found.output_tokens, found.finish_reason) == (3, 33, "length")
        assert found.text == " word" * 33
        assert len(array("d", found.chunk_times)) == (33 if stream else 0)
        assert exchange.request_id.startswith("r-")


def test_bursts_change_no_answer() -> None:
    with start_blast_server(burst=8) as server:
        for tokens in (1, 7, 8, 9, 20):
            for _, found in run(ask(server, tokens, 3)):
                assert (found.outcome, found.output_tokens) == (RequestOutcome.OK, tokens)
                assert found.text == " word" * tokens
        assert _counter(server, "vllm:generation_tokens_total") == 3 * 45


def test_pages_and_keys(blast: BlastServer) -> None:
    assert get(blast, "/health") == ""
    assert json.loads(get(blast, "/v1/models"))["data"][0]["id"] == blast.model
    before = _counter(blast, "vllm:generation_tokens_total")
    run(ask(blast, 10, 3))
    assert _counter(blast, "vllm:generation_tokens_total") - before == 30
    assert _counter(blast, "vllm:num_requests_running") == 0

    with start_blast_server(api_key="secret") as server:
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(server, "/v1/models")
        refused.value.close()
        assert refused.value.code == 401
        assert get(server, "/v1/models", Authorization="Bearer secret")


def _counter(server: BlastServer, name: str, label: str = "") -> float:
    lines = [line for line in get(server, "/metrics").splitlines() if line.startswith(name) and label in line]
    return float(lines[0].rpartition(" ")[2])


@pytest.mark.parametrize(("path", "status"), [("/nothing", 404), ("/v1/completions", 404)])
def test_unknown_pages(blast: BlastServer, path: str, status: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(blast, path)
    refused.value.close()
    assert refused.value.code == status


def test_paces_slots_and_stalls_take_their_time() -> None:
    with start_blast_server("paced", tokens_per_s=100.0, ttft_s=0.1) as server:
        for exchange, found in run(ask(server, 21, 3)):
            times = array("d", found.chunk_times)
            assert len(times) == 21
            assert times[0] - exchange.started_s >= 0.095
            # Each token is due by the stream's clock: a late first one does not delay the last.
            assert 0.295 <= times[-1] - exchange.started_s < 10.0

    with start_blast_server("paced", tokens_per_s=100.0, ttft_s=0.1) as server:
        ((exchange, _),) = run(ask(server, 11, stream=False))
    assert exchange.ended_s is not None
    assert exchange.ended_s - exchange.started_s >= 0.19

    with start_blast_server("stall", tokens_per_s=100.0, stall_at_s=0.1, stall_for_s=0.5) as server:
        for _, found in run(ask(server, 31, 2)):
            times = array("d", found.chunk_times)
            assert max(b - a for a, b in pairwise(times)) >= 0.4

    with start_blast_server("paced", tokens_per_s=100.0, slots=1) as server:
        made = run(ask(server, 11, 3))
    spans = sorted((times[0], times[-1]) for times in (array("d", found.chunk_times) for _, found in made))
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_in_lockstep_all_streams_get_their_tokens_together() -> None:
    with start_blast_server("paced", tokens_per_s=4.0, ttft_s=0.02, lockstep=True) as server:
        made = [array("d", found.chunk_times) for _, found in run(ask(server, 8, 4))]
    assert [len(times) for times in made] == [8] * 4
    spreads = sorted(max(together) - min(together) for together in zip(*made, strict=True))
    assert spreads[4] < 0.125, "half a step, in most of them: a busy machine reads some late"
    assert 1.5 <= made[0][-1] - made[0][0] < 10.0


def test_departures_are_noticed() -> None:
    behaviour = Behaviour(conduct=Conduct.DISCONNECT, leave_after_chunks=2)
    with start_blast_server("paced", tokens_per_s=50.0, slots=1) as server:
        run(ask(server, 1000, 2, behaviour=behaviour))
        deadline = time.monotonic() + 60.0
        while _counter(server, "vllm:request_success_total", "abort") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _counter(server, "vllm:request_success_total", "abort") == 2
        assert _counter(server, "vllm:num_requests_running") == 0


def test_a_slow_reader_holds_up_nobody_else(blast: BlastServer) -> None:
    async def both() -> tuple[list[tuple[Exchange, Digest]], list[tuple[Exchange, Digest]]]:
        slow = Behaviour(conduct=Conduct.SLOW_READER, read_bytes_per_s=200_000.0)
        return await asyncio.gather(ask(blast, 1000, behaviour=slow), ask(blast, 1000, 4))

    slow, fast = run(both())
    assert [found.outcome for _, found in slow + fast] == [RequestOutcome.OK] * 5
    assert slow[0][0].ended_s is not None
    assert slow[0][0].ended_s > 0.5


def test_it_ends_with_its_context_or_says_that_it_did_not_start() -> None:
    with start_blast_server() as server:
        os.kill(server.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
    with pytest.raises(LoadgenError, match="did not start"), start_blast_server("nonsense"):
        pass


@pytest.mark.parametrize("end", ["stdin", "signal"])
def test_it_ends_by_itself_with_its_parent_or_a_signal(end: str) -> None:
    command = [sys.executable, "-m", "loadgen.selftest.blast_server", "--port=0"]
    command += ["--end-with-stdin"] if end == "stdin" else []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert int(process.stdout.readline()) > 0
        if end == "stdin":
            process.stdin.close()
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
