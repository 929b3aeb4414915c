"""The autoscaler in virtual time: it polls once per period, and its targets are carried out at once.

The policy, its signals and decisions, and the rules that apply them (`scaling/core/fleet.py`) are the live system's.
Only the driver differs: snapshots are read from a simulated supernode, whose events start and drain instances.
"""

from serving.config.scaling import AutoscalerConfig, SloConfig
from serving.scaling.core.autoscaler import make_scaler
from serving.scaling.core.decision import LedgerEntry, Scaler
from serving.scaling.core.fleet import ScalingFleet
from serving.scaling.core.fleet_values import Decided, FleetEvent, FleetPolled, SetTarget, TargetAccepted
from serving.virtual.cluster_snapshot import virtual_sizes
from serving.virtual.result import ScaleRecord
from serving.virtual.scaling_signals import SignalReader
from serving.virtual.supernode import Supernode


def configured_scaler(slo: SloConfig, config: AutoscalerConfig) -> Scaler | None:
    """The scaler for `[autoscaler] policy`; None for a fixed size of all pools."""
    return None if config.policy == "none" else make_scaler(config.policy, slo, config)


class ScalingDriver:
    """Driver of a fleet for one supernode: each poll updates the fleet and calls a scaler.

    Attributes:
        records: all entries of the ledger so far.
        fleet: the rules.
    """

    def __init__(self, node: Supernode, scaler: Scaler) -> None:
        self.records: list[ScaleRecord] = []
        self.fleet = ScalingFleet(node.config.autoscaler, virtual_sizes(node), anywhere=True)
        self._node = node
        self._scaler = scaler
        self._reader = SignalReader(node)

    def start(self) -> None:
        """Schedule the next poll, one period from now; each poll schedules the next while requests are in flight."""
        self._node.queue.at(self._node.queue.now + self._node.config.autoscaler.period_s, self._look)

    def _look(self, _: object) -> None:
        node = self._node
        self._tell(FleetPolled(self._reader.look()))
        changes = self._scaler.decide(self._reader.signals(self.fleet)).changes
        if changes:
            self._tell(Decided(changes))
        node.sizes.fill()
        if node.parts is not None:
            node.parts.fill()
        if node.busy:
            self.start()

    def _tell(self, event: FleetEvent) -> None:
        """Pass an event to the fleet, and carry out its effects at once."""
        now = self._node.queue.now
        effects = self.fleet.on(event, now)
        while effects:
            for entry in effects:
                if isinstance(entry, LedgerEntry):
                    self._record(entry)
            if not isinstance(order := effects[-1], SetTarget):
                return
            self._set_target(order)
            effects = self.fleet.on(TargetAccepted(), now)

    def _set_target(self, order: SetTarget) -> None:
        """Set a pool's target. For parts and memory servers, the pool itself removes the last ones."""
        node, pool = self._node, order.pool
        if pool == "decode" and node.parts is not None:
            node.parts.set_target(order.target)
        elif pool in node.config.pools:
            node.sizes.set_target(pool, order.target, order.leaving)
        elif node.memory_sizes is not None:
            node.memory_sizes.set_target(order.target)

    def _record(self, entry: LedgerEntry) -> None:
        kind = entry.kind.value
        self.records.append(ScaleRecord(entry.at, entry.pool, entry.before, entry.target, kind, entry.reason))
        change = f"{entry.before} -> {entry.target}"
        self._node.book.decided(entry.at, "scale", entry.pool, change, f"{kind}: {entry.reason}")
