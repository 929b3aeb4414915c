"""One node with a prefill and a decode instance from its users' view; then its decode pool grows and shrinks."""

import asyncio
import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import openai
import pytest
from msgspec import structs

from serving.gateway.api.tokenizer import Tokenizer
from tests.e2e.listeners import addresses
from tests.e2e.pools_page import grow_and_shrink_by_hand
from tests.e2e.server import Server, wait_for
from tests.e2e.streams import Streams, fickle_request, order
from tests.examples.run_example import run_example
from tests.live.workload import GREEDY, Ask, Reference, tokens, varied_asks
from tests.scaling.dashboard.chromium import Chromium

pytestmark = pytest.mark.slow

TEXT = "Once upon a time there was a virtual machine that could "


def expected_text(text: str, reference: Reference, tokenizer: Tokenizer) -> str:
    prompt = tuple(tokenizer.encode(text, add_special_tokens=True))
    return tokenizer.decode(reference.output(prompt, GREEDY))


def test_the_openai_client(server: Server, reference: Reference, tokenizer: Tokenizer) -> None:
    expected = expected_text(TEXT, reference, tokenizer)
    asked: dict[str, object] = {"model": "tiny", "prompt": TEXT, "max_tokens": 12, "temperature": 0}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        whole = client.completions.create(**asked, extra_body={"ignore_eos": True})
        assert whole.choices[0].text == expected
        assert whole.usage.completion_tokens == 12
        pieces = client.completions.create(**asked, stream=True, extra_body={"ignore_eos": True})
        assert "".join(piece.choices[0].text for piece in pieces) == expected
        chat = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=5, temperature=0
        )
        assert chat.choices[0].finish_reason in ("stop", "length")


def test_the_async_openai_client(server: Server, reference: Reference, tokenizer: Tokenizer) -> None:
    async def ask() -> tuple[str, str]:
        asked: dict[str, object] = {"model": "tiny", "prompt": TEXT, "max_tokens": 12, "temperature": 0}
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
            whole = await client.completions.create(**asked, extra_body={"ignore_eos": True})
            stream = await client.completions.create(**asked, stream=True, extra_body={"ignore_eos": True})
            return whole.choices[0].text, "".join([piece.choices[0].text async for piece in stream])

    expected = expected_text(TEXT, reference, tokenizer)
    assert asyncio.run(ask()) == (expected, expected)


def test_varied_greedy_requests_are_token_exact(server: Server, reference: Reference) -> None:
    asks = [
        Ask(ask.prompt, structs.replace(GREEDY, max_tokens=ask.sampling.max_tokens), ask.n)
        for ask in varied_asks(block_tokens=16, step_tokens=128)[:40]
    ]
    for ask in asks[:10]:
        answer = server.post("/v1/completions", order(ask))
        assert [choice["token_ids"] for choice in answer["choices"]] == reference.outputs(ask)
    streams = Streams(server, [replace(ask, n=1) for ask in asks])
    asyncio.run(streams.run())
    assert all(stream.follows(reference) for stream in streams.streams)


def test_everything_listens_on_loopback(server: Server) -> None:
    listening = addresses(server.processes())
    assert len(listening) > 10, "Ray, Serve, links and the gateway"
    assert [(pid, where) for pid, where in listening if not where.is_loopback] == []


def test_pages_about_the_system(server: Server) -> None:
    assert server.get("/ready")
    assert server.get("/health") is not None
    assert f'href="{server.printed("Ray dashboard")}/pools"' in server.get("/")
    assert "<code>/v1/chat/completions</code>" in server.get("/docs")
    status = server.cluster()
    assert (status["model"], status["mode"], status["npus"]) == ("tiny", "disaggregated", {"used": 4, "offered": 8})
    assert [(pool["name"], len(pool["replicas"])) for pool in status["pools"]] == [("prefill", 1), ("decode", 1)]
    pids = {replica["pid"] for pool in status["pools"] for replica in pool["replicas"]}
    assert pids <= server.processes().keys()

    def counted() -> bool:
        return any(
            line.startswith("vllm:generation_tokens_total") and float(line.rpartition(" ")[2]) > 0
            for line in server.get("/metrics").splitlines()
        )

    wait_for(counted, "generated tokens show in the metrics")


def test_the_status_command_prints_a_table(server: Server) -> None:
    command = [sys.executable, "-m", "serving.cli", "status", "--url", server.url]
    table = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "4 of 8 NPUs in use" in table
    assert "prefill 1/1" in table
    assert "decode 1/1" in table
    plain = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert json.loads(plain)["mode"] == "disaggregated"


def test_the_chat_command_says_who_answered(server: Server) -> None:
    command = [sys.executable, "-m", "serving.cli", "chat", "hello", "--url", server.url, "--max-tokens", "8"]
    done = subprocess.run(
        [*command, "--temperature", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout.strip()
    named = re.search(r"(prefill#\w+) → (decode#\w+)", done.stderr)
    assert named is not None, done.stderr
    assert named[1] in [one["replica"] for one in server.replicas("prefill")]
    assert named[2] in [one["replica"] for one in server.replicas("decode")]


def test_the_page_on_rays_dashboard(server: Server, tmp_path: Path) -> None:
    with Chromium(tmp_path / "profile") as browser:
        asyncio.run(grow_and_shrink_by_hand(server, browser))
    wait_for(lambda: len(server.replicas("decode")) == 1, "the instance has left", state=server.cluster)


def test_the_examples(server: Server) -> None:
    chat = run_example("chat.py", server.url)
    assert re.search(r"prompt \+ \d+ output tokens; first token after \d+ ms", chat.stdout), chat.stderr
    turns = run_example("turns.py", server.url)
    assert turns.returncode == 0, turns.stderr
    cached = [int(count) for count in re.findall(r"(\d+) cached", turns.stdout)]
    assert len(cached) == 5, turns.stdout
    assert sorted(cached) == cached, turns.stdout
    assert cached[-1] > cached[0]
    scaled = run_example("scale.sh", server.url, environment={"TMPDIR": str(server.folder)})
    assert scaled.returncode == 0, scaled.stdout + scaled.stderr
    assert "decode 2/2" in scaled.stdout
    wait_for(lambda: len(server.replicas("decode")) == 1, "the instance has left", state=server.cluster)


def test_a_thousand_requests_a_fifth_of_the_clients_leave(server: Server) -> None:
    rng = random.Random(11)
    leaving = [rng.random() < 0.2 for _ in range(1000)]

    async def storm() -> list[str]:
        gate = asyncio.Semaphore(32)

        async def one(seed: int) -> str:
            async with gate:
                return await fickle_request(server.port, random.Random(seed), leave=leaving[seed])

        return await asyncio.gather(*(one(seed) for seed in range(1000)))

    ends = asyncio.run(storm())
    assert [end for end in ends if end.startswith("failed")] == []
    assert ends.count("left") == sum(leaving)
    server.wait_idle()


def scale(server: Server, replicas: int) -> None:
    """Request another size of the decode pool from Ray's dashboard."""
    server.post(
        "/api/v1/applications/cloudmatrix/deployments/decode/scale",
        {"target_num_replicas": replicas},
        url=server.printed("Ray dashboard"),
        headers={"Authorization": f"Bearer {server.printed('dashboard token')}"},
    )


def test_the_decode_pool_grows_and_shrinks_under_load(server: Server, reference: Reference) -> None:
    scale(server, 2)
    wait_for(lambda: len(server.replicas("decode")) == 2, "the second instance is listed")
    rng = random.Random(5)
    short = [Ask(tokens(rng, 50), structs.replace(GREEDY, max_tokens=10)) for _ in range(8)]

    def both_work() -> bool:
        asyncio.run(Streams(server, short).run())
        return all(replica["handoffs_in_total"] for replica in server.replicas("decode"))

    wait_for(both_work, "requests reach both instances")
    prompts = [tokens(rng, 50), tokens(rng, 50)]
    long = [Ask(prompts[i % 2], structs.replace(GREEDY, max_tokens=900)) for i in range(8)]
    asyncio.run(shrink_while_streaming(server, Streams(server, long), reference))
    wait_for(lambda: len(server.replicas("decode")) == 1, "the instance has left", state=server.cluster)
    server.wait_idle()


async def shrink_while_streaming(server: Server, streams: Streams, reference: Reference) -> None:
    """Streams run on both instances; then one instance is drained, and every stream finishes."""
    running = await streams.start()
    await asyncio.to_thread(scale, server, 1)
    assert not streams.done, "too late: nothing ran any more"
    await running
    assert all(stream.follows(reference) for stream in streams.streams)
