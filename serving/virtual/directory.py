"""Instances that are up, by name: delivers the commands of gateways."""

from serving.ids import ReplicaId
from serving.values.orders import Order
from serving.virtual.ports import InstancePort


class Directory:
    """Delivers commands to instances, and reports if the instance is no longer up."""

    def __init__(self) -> None:
        self._instances: dict[ReplicaId, InstancePort] = {}

    def put(self, instance: InstancePort) -> None:
        """Add an instance that is up."""
        self._instances[instance.name] = instance

    def drop(self, name: ReplicaId) -> None:
        """Remove an instance that has stopped."""
        self._instances.pop(name, None)

    def give(self, name: ReplicaId, order: Order) -> bool:
        """Pass a command to `InstancePort.take`. Returns: whether the instance is up."""
        instance = self._instances.get(name)
        if instance is None:
            return False
        instance.take(order)
        return True
