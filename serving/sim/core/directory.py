"""The instances that are up, by name: where a gateway's orders arrive."""

from serving.ids import ReplicaId, SequenceId
from serving.sim.core.ports import Instance
from serving.values.sequence import HandoffTicket, SequenceSpec


class Directory:
    """Orders to instances; those to an instance that is gone are told so."""

    def __init__(self) -> None:
        self._instances: dict[ReplicaId, Instance] = {}

    def put(self, instance: Instance) -> None:
        """It is up."""
        self._instances[instance.name] = instance

    def drop(self, name: ReplicaId) -> None:
        """It is gone."""
        self._instances.pop(name, None)

    def add(self, name: ReplicaId, spec: SequenceSpec) -> bool:
        """`Instance.add`. Returns: whether it is there."""
        instance = self._instances.get(name)
        if instance is None:
            return False
        instance.add(spec)
        return True

    def adopt(self, name: ReplicaId, spec: SequenceSpec, ticket: HandoffTicket) -> bool:
        """`Instance.adopt`. Returns: whether it is there."""
        instance = self._instances.get(name)
        if instance is None:
            return False
        instance.adopt(spec, ticket)
        return True

    def release(self, name: ReplicaId, ticket_id: str, *, distrust: bool) -> None:
        """`Instance.release`; nothing if it is gone."""
        instance = self._instances.get(name)
        if instance is not None:
            instance.release(ticket_id, distrust=distrust)

    def cancel(self, name: ReplicaId, sequence_id: SequenceId) -> None:
        """`Instance.cancel`; nothing if it is gone."""
        instance = self._instances.get(name)
        if instance is not None:
            instance.cancel(sequence_id)
