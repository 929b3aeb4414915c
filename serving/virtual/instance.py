"""Common part of instances in virtual time: who they are, what they did, and whether they leave."""

from collections.abc import Callable

from serving.ids import ReplicaId
from serving.instance.core.life import InstanceLife
from serving.virtual.meter import InstanceMeter


class InstanceInVirtualTime:
    """One instance.

    Attributes:
        life: rules by which it leaves.
        silent: frozen for so long that gateways have given it up; they learn of it again when it goes on.
        on_empty: told when the last sequence has left.
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
        """Whether it takes nothing new."""
        return self.life.leaving
