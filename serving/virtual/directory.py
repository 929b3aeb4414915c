"""The instances that are up, by name: where a gateway's orders arrive."""

from serving.ids import ReplicaId
from serving.values.orders import Order
from serving.virtual.ports import InstancePort


class Directory:
    """Orders to instances; those to an instance that is gone are told so."""

    def __init__(self) -> None:
        self._instances: dict[ReplicaId, InstancePort] = {}

    def put(self, instance: InstancePort) -> None:
        """Add an instance that is up."""
        self._instances[instance.name] = instance

    def drop(self, name: ReplicaId) -> None:
        """Remove an instance that is gone."""
        self._instances.pop(name, None)

    def give(self, name: ReplicaId, order: Order) -> bool:
        """`InstancePort.take`. Returns: whether it is there."""
        instance = self._instances.get(name)
        if instance is None:
            return False
        instance.take(order)
        return True
