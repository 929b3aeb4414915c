"""A gateway reports its counters to the board, and whether a board has received a report of it before."""

import asyncio
import contextlib

import pytest

from serving.gateway.core.losses import Losses
from serving.gateway.live import traffic_report
from serving.gateway.live.gateway_peers import GatewayPeers
from serving.gateway.live.traffic_report import TrafficReporter
from serving.telemetry.metrics import GatewayMetrics
from serving.values.signals import Traffic
from serving.values.traffic import BoardReply, GatewayReport


class Gateway:
    """The used part of `MeteredBackend`."""

    def __init__(self) -> None:
        self.targets: dict[str, int] = {}
        self.losses = Losses()
        self.silences = 0

    def report(self, now: float) -> GatewayReport:
        return GatewayReport("g", Traffic(), 0, (), ())

    def on_reply(self, reply: BoardReply) -> None:
        self.targets.update(reply.targets)

    def unheard(self, now: float) -> None:
        self.silences += 1

    def starved(self) -> bool:
        return False

    async def next_stir(self, patience_s: float) -> bool:
        return True


class Board:
    """The used part of `BoardClient`; unreachable the first time."""

    def __init__(self) -> None:
        self.heard: list[bool] = []
        self.enough = asyncio.Event()

    async def report(self, report: GatewayReport) -> BoardReply:
        self.heard.append(report.known)
        if len(self.heard) == 1:
            raise TimeoutError
        if len(self.heard) == 4:
            self.enough.set()
        return BoardReply({"decode": len(self.heard)})


def test_only_what_has_arrived_makes_a_gateway_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_report, "TICK_S", 0.001)
    monkeypatch.setattr(traffic_report, "PERIOD_S", 0.001)

    async def scene() -> tuple[list[bool], Gateway]:
        gateway, board = Gateway(), Board()
        monkeypatch.setattr(traffic_report, "BoardClient", lambda: board)
        peers = GatewayPeers("g", "s", GatewayMetrics("m").numbers)
        reporter = TrafficReporter(gateway, peers)  # type: ignore[arg-type] # as far as it is asked
        running = asyncio.create_task(reporter.run())
        await asyncio.wait_for(board.enough.wait(), 30.0)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        return board.heard[:4], gateway

    heard, gateway = asyncio.run(scene())
    assert heard == [False, False, True, True]
    assert gateway.targets["decode"] >= 3
    assert gateway.silences == 1, "the board's first one"
