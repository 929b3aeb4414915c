"""The autoscaler in virtual time: looks once a period, is told what a live one is told, and its targets come true.

The policy, its signals, its decisions, and what becomes of them (`scaling/core/fleet.py`) are the live system's. What
differs is who reads and who carries out: here a supernode's instances and books, and events that start and drain.
"""

from dataclasses import replace

from serving.config.scaling import AutoscalerConfig, SloConfig
from serving.scaling.core.autoscaler import make_scaler
from serving.scaling.core.decision import PoolTarget, Scaler
from serving.scaling.core.fleet import PoolOrder, granted, in_order, order
from serving.scaling.core.node_room import NodeRoom
from serving.virtual.cluster_snapshot import host_sight, room_sight, virtual_sizes
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
        self._room = NodeRoom(
            replace(node.config.autoscaler, nodes="fixed"), virtual_sizes(node), lambda _pool, _now: None
        )

    def start(self) -> None:
        """Look every period from now on. Effects: an event is always ahead while requests are."""
        self._node.queue.at(self._node.queue.now + self._node.config.autoscaler.period_s, self._look)

    def _look(self, _: object) -> None:
        node = self._node
        decision = self._scaler.decide(self._reader.read())
        for wanted in in_order(decision.changes):
            if (to := granted(wanted, room_sight(node), self._room)) is not None:
                self._carry_out(self._order(to))
        node.sizes.fill()
        if node.parts is not None:
            node.parts.fill()
        if node.busy:
            self.start()

    def _order(self, to: PoolTarget) -> PoolOrder:
        """A target with the instances that leave; memory servers and parts of instances are chosen by their pools."""
        if to.pool not in self._node.config.pools or (to.pool == "decode" and self._node.parts is not None):
            return PoolOrder(to, ())
        return order(to, host_sight(self._node), self._room)

    def _carry_out(self, ordered: PoolOrder) -> None:
        node, now, change = self._node, self._node.queue.now, ordered.to
        self.records.append(
            ScaleRecord(now, change.pool, change.before, change.target, change.kind.value, change.reason)
        )
        node.book.decided(
            now, "scale", change.pool, f"{change.before} -> {change.target}", f"{change.kind.value}: {change.reason}"
        )
        if change.pool == "decode" and node.parts is not None:
            node.parts.set_target(change.target)
        elif change.pool != "kvcache":
            node.sizes.set_target(change.pool, change.target, ordered.leaving)
        elif node.memory_sizes is not None:
            node.memory_sizes.set_target(change.target)
