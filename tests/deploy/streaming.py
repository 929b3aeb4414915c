"""Steady streams to one gateway, each compared token by token with the undisturbed system's output.

    python -m tests.deploy.streaming URL STOP_FILE REQUESTS_PER_S TOKENS

Prints `ready` after all requests were sent twice, undisturbed; then sends until the file exists, and prints the run as
JSON, as `serving/tools/chaos/findings.py` reads it. Its times are those of CLOCK_MONOTONIC, which hosts made of
namespaces share.
"""

import asyncio
import sys
import time
from pathlib import Path

import msgspec

from serving.client.http_client import ask_gateway
from serving.faults.scenario import LoadConfig
from serving.tools.chaos.asks import make_asks
from serving.tools.chaos.chaos_client import GatewayEndpoint
from serving.tools.chaos.chaos_result import ChaosRun
from serving.tools.chaos.steady_load import ChaosLoad

PATIENCE_S = 120.0
_LOOK_S = 0.1


async def run(url: str, stop: Path, rate_per_s: float, tokens: int) -> ChaosRun:
    """Record the expected output, then send until stopped. Raises: UnavailableError if the undisturbed system fails."""
    model = str(ask_gateway(url, "/cluster", None)["model"])
    load = LoadConfig(rate_per_s, asks=24, longest_tokens=tokens, long_prompt_tokens=120, deadline_s=PATIENCE_S)
    found = ChaosRun("hosts", 0, "", model)
    sending = ChaosLoad(found, GatewayEndpoint.of(url), make_asks(load, 0, model), load.deadline_s)
    await sending.learn()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    over = asyncio.Event()
    steady = asyncio.create_task(sending.send_steadily(rate_per_s, over))
    await asyncio.to_thread(_await, stop)
    over.set()
    await steady
    await sending.finish()
    return found


def _await(stop: Path) -> None:
    while not stop.exists():
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    done = asyncio.run(run(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
    sys.stdout.buffer.write(msgspec.json.encode(done) + b"\n")
