"""The autoscaler in virtual time: looks once a period, is told what a live one is told, and its targets come true.

The policy, its signals and its decisions are the live system's. What differs is who reads and who carries out: here a
supernode's instances and books, and events that start and drain.
"""

from serving.config.scaling import AutoscalerConfig, SloConfig
from serving.scaling.core.autoscaler import make_scaler
from serving.scaling.core.decision import PoolTarget, Scaler
from serving.virtual.result import ScaleRecord
from serving.virtual.scaling_signals import SignalReader
from serving.virtual.supernode import Supernode


def configured_scaler(slo: SloConfig, config: AutoscalerConfig) -> Scaler | None:
    """The scaler that `[autoscaler] policy` names; None if pools stay as they are."""
    return None if config.policy == "none" else make_scaler(config.policy, slo, config)


class ScalingDriver:
    """Asks a scaler, and does what it says.

    Attributes:
        records: every change of a target so far.
    """

    def __init__(self, node: Supernode, scaler: Scaler, reader: SignalReader) -> None:
        self.records: list[ScaleRecord] = []
        self._node = node
        self._scaler = scaler
        self._reader = reader

    def start(self) -> None:
        """Look every period from now on. Effects: an event is always ahead while requests are."""
        self._node.queue.at(self._node.queue.now + self._node.config.autoscaler.period_s, self._look)

    def _look(self, _: object) -> None:
        node = self._node
        decision = self._scaler.decide(self._reader.read())
        for change in sorted(decision.changes, key=lambda one: one.target > one.before):  # who gives NPUs goes first
            self._carry_out(change)
        node.sizes.fill()
        if node.parts is not None:
            node.parts.fill()
        if node.busy:
            self.start()

    def _carry_out(self, change: PoolTarget) -> None:
        node, now = self._node, self._node.queue.now
        self.records.append(
            ScaleRecord(now, change.pool, change.before, change.target, change.kind.value, change.reason)
        )
        node.book.decided(
            now, "scale", change.pool, f"{change.before} -> {change.target}", f"{change.kind.value}: {change.reason}"
        )
        if change.pool == "decode" and node.parts is not None:
            node.parts.set_target(change.target)
        elif change.pool != "kvcache":
            node.sizes.set_target(change.pool, change.target)
        elif node.memory_sizes is not None:
            node.memory_sizes.set_target(change.target)
