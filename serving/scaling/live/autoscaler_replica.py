"""The Serve replica of a scaler: it requests signals from the board, calls the pure policy, and returns the targets.

It has no state that must survive: holds and ledger are in the board, and a restarted scaler rebuilds its history within
minutes.
"""

import asyncio
from typing import Any

import ray
from msgspec.structs import asdict, replace

from serving.cluster.logs import log_beside_serve
from serving.cluster.serve_replicas import keep_on_loopback
from serving.config.serve import ServeConfig
from serving.config.upgrade import with_live
from serving.kvpool.live.pool_control import Complaint
from serving.scaling.core.autoscaler import make_scaler
from serving.scaling.core.decision import Scaler
from serving.scaling.core.signals import PolicyTime
from serving.scaling.live.scaling_board import BoardClient
from serving.values.signals import ScalingSignals, Traffic

GAUGES = frozenset({"queued", "queued_tokens", "oldest_wait_s"})
RETRY_S = 0.5


class AutoscalerDeployment:
    """One scaler, which decides once per period and whenever requests wait for an empty pool."""

    async def __init__(self, config: ServeConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        log_beside_serve(config.cluster.log_format)
        keep_on_loopback()
        self._config = config
        time = PolicyTime(config.time_scale)
        self._period_s, self._scaler = _scaler(config)
        self._rising = RisingTraffic(time.of(self._period_s))
        self._board = BoardClient()
        self._complaint = Complaint("the scaling board does not answer; no pool is scaled meanwhile")
        self._looks = 0
        self._task = asyncio.create_task(self._forever())

    async def reconfigure(self, live: dict[str, Any]) -> None:
        """Apply the keys that need no restart, see `upgrade_rules`. Called by Serve, also at the start.

        If any key has changed, the policy restarts without history.
        """
        config = with_live(self._config, live)
        if config != self._config:
            self._config = config
            self._period_s, self._scaler = _scaler(config)

    async def facts(self) -> dict[str, Any]:
        """Number of polls as `looks`, for tests and scripts with a Serve handle."""
        return {"looks": self._looks}

    def check_health(self) -> None:
        """Called by Serve every `[health] shell_period_s`.

        Raises: RuntimeError if the loop has exited; Serve then replaces the replica.
        """
        if self._task.done():
            raise RuntimeError(f"the autoscaler ended: {self._task.exception()!r}")

    async def __del__(self) -> None:
        task = getattr(self, "_task", None)
        if task is not None:
            task.cancel()

    async def _forever(self) -> None:
        while True:
            try:
                await self._once()
                self._complaint.over()
            except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
                self._complaint.make(error)
                await asyncio.sleep(RETRY_S)

    async def _once(self) -> None:
        signals = await self._board.next_signals(self._period_s)
        decision = self._scaler.decide(self._rising.upon(signals))
        self._looks += 1
        if decision.changes:
            await self._board.apply(decision.changes)


def _scaler(config: ServeConfig) -> tuple[float, Scaler]:
    """Real time between two polls [s], and the policy."""
    policy = config.autoscaler.policy
    assert policy != "none", "then there is no autoscaler"
    period_s = PolicyTime(config.time_scale).real_period_s(config.autoscaler.period_s)
    return period_s, make_scaler(policy, config.slo, config.autoscaler)


class RisingTraffic:
    """Monotonic totals and time, although a restarted board counts from zero.

    Args:
        behind_s: time assumed to have passed if signals are older than the previous ones.
    """

    def __init__(self, behind_s: float = 1.0) -> None:
        self._behind_s = behind_s
        self._offsets: dict[str, int] = {}
        self._last: Traffic | None = None
        self._now = self._shift_s = 0.0

    def upon(self, signals: ScalingSignals) -> ScalingSignals:
        """The signals, with the totals of previous boards added."""
        counted = {name: value for name, value in asdict(signals.traffic).items() if name not in GAUGES}
        last = asdict(self._last) if self._last is not None else counted
        if any(value + self._offsets.get(name, 0) < last[name] for name, value in counted.items()):
            self._offsets = {name: last[name] - value for name, value in counted.items()}
        traffic = replace(
            signals.traffic, **{name: value + self._offsets.get(name, 0) for name, value in counted.items()}
        )
        self._last = traffic
        if signals.now + self._shift_s <= self._now:  # a new board whose clock was set back
            self._shift_s = self._now + self._behind_s - signals.now
        self._now = signals.now + self._shift_s
        pools = tuple(replace(pool, held_until=self._shifted(pool.held_until)) for pool in signals.pools)
        cache = signals.cache and replace(signals.cache, held_until=self._shifted(signals.cache.held_until))
        return replace(signals, now=self._now, pools=pools, cache=cache, traffic=traffic)

    def _shifted(self, held_until: float) -> float:
        return held_until + self._shift_s if held_until else 0.0
