"""Gateways shut down in an orderly way under streams: first one of two, then the last one with the whole system."""

import asyncio
import json
import re
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.e2e.scaled import Scaled, asks
from tests.e2e.server import STOP_S, wait_for
from tests.e2e.streams import Streams
from tests.live.workload import Reference

LENGTH = 350
"""Tokens of a stream, which take 7 s at 20 ms a step: Serve waits for 2 s before it drains a replica."""
CUT_LENGTH = 900
"""Tokens of a stream that is cut: it must not have finished before, on any machine."""


def gateways(server: Scaled) -> int:
    """Processes of gateways."""
    return sum(":gateway" in title for title in server.processes().values())


def set_gateways(server: Scaled, replicas: int) -> None:
    """Request this number of gateways from Serve. Its dashboard answers 503 for a while after the GCS has died."""
    url, headers = server.dashboard["url"], server.dashboard["headers"]
    request = urllib.request.Request(
        f"{url}/api/v1/applications/cloudmatrix/deployments/gateway/scale",
        json.dumps({"target_num_replicas": replicas}).encode(),
        {"Content-Type": "application/json", **headers},
    )

    def accepted() -> bool:
        try:
            urllib.request.urlopen(request, timeout=60).close()
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            return False
        return True

    wait_for(accepted, "Serve takes the number of gateways", pause_s=0.5)


def refusal(server: Scaled) -> dict[str, Any]:
    """The error object of a draining gateway, as soon as it returns one."""
    told: dict[str, Any] = {}

    def asked() -> bool:
        try:
            server.get("/ready")
        except urllib.error.HTTPError as error:
            told.update(json.load(error), status=error.code, connection=error.headers["connection"])
        return bool(told)

    wait_for(asked, "it is not ready any more")
    return told


async def streams_at_both(server: Scaled) -> list[tuple[Streams, "asyncio.Task[None]"]]:
    """Streams that have started, at least one at each of the two gateways."""
    begun: list[tuple[Streams, asyncio.Task[None]]] = []
    busy: set[str] = set()
    while len(busy) < 2:
        streams = Streams(server, asks(len(begun), 1, LENGTH))
        begun.append((streams, await streams.start()))
        for _ in range(8):
            text = await asyncio.to_thread(server.get, "/metrics")
            busy |= set(re.findall(r'^cloudmatrix:gateway_requests{engine="(\d+)".*} [1-9]', text, re.M))
    return begun


def models_card(server: Scaled) -> tuple[int, int]:
    """Creation time of the model as one gateway reports it, and the number of request ids in its response."""
    key = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    request = urllib.request.Request(f"{server.url}/v1/models", headers=key)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["data"][0]["created"], len(reply.headers.get_all("x-request-id"))


def one_gateway_leaves(server: Scaled, reference: Reference) -> None:
    """Its streams finish normally, and the other gateway takes new requests."""
    assert gateways(server) == 2
    cards = {models_card(server) for _ in range(16)}
    assert [ids for _, ids in cards] == [1], "both gateways say the same, with one request id"

    async def scene() -> None:
        begun = await streams_at_both(server)
        await asyncio.to_thread(set_gateways, server, 1)
        await asyncio.gather(*(running for _, running in begun))
        assert all(stream.follows(reference) for streams, _ in begun for stream in streams.streams)

    asyncio.run(scene())
    wait_for(lambda: gateways(server) == 1, "one of them has gone", state=server.processes)
    asyncio.run(Streams(server, asks(99, 4, 3)).run())


def the_system_leaves(server: Scaled, reference: Reference, *, patient: bool) -> None:
    """Interrupt the system during a stream.

    Args:
        patient: the stream may finish; otherwise a second signal stops the wait, and the stream is cut.
    """
    streams = Streams(server, asks(100, 1, LENGTH if patient else CUT_LENGTH))

    async def interrupted() -> None:
        running = await streams.start()
        server.process.terminate()
        refused = await asyncio.to_thread(refusal, server)
        assert "shutting down" in refused["error"]["message"]
        assert (refused["status"], refused["connection"]) == (503, "close")
        if patient:
            await running
            assert all(stream.follows(reference) for stream in streams.streams)
        else:
            server.process.terminate()
            with pytest.raises(Exception, match="shutting down"):
                await running

    asyncio.run(interrupted())
    assert server.process.wait(STOP_S) == 0
    server.wait_ended()
    server.assert_nothing_left()
