"""Common part of instances in virtual time: identity, meter of their work, and lifecycle."""

from collections.abc import Callable

from serving.ids import ReplicaId
from serving.instance.core.life import InstanceLife
from serving.virtual.ports import InstanceMeter


class InstanceInVirtualTime:
    """One instance.

    Attributes:
        life: rules by which it drains and stops.
        silent: frozen for so long that gateways have given it up; they add it again when it thaws.
        on_empty: called when the last sequence has left.
    """

    def __init__(self, name: ReplicaId, pool: str, npus: int) -> None:
        self.name = name
        self.pool = pool
        self.npus = npus
        self.alive = True
        self.silent = False
        self.meter = InstanceMeter()
        self.life = InstanceLife()
        self.on_empty: Callable[[], None] | None = None

    @property
    def draining(self) -> bool:
        """Whether it accepts no new sequences."""
        return self.life.leaving
