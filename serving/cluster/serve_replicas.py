"""Which replicas Ray Serve has, by the names of their actors: its status leaves out those of what is being deleted."""

from collections.abc import Iterable, Mapping

from ray.serve._private.common import ReplicaID


def replicas_among(named: Iterable[Mapping[str, str]]) -> list[ReplicaID]:
    """Replicas of all applications.

    Args:
        named: what `ray.util.list_named_actors(all_namespaces=True)` returns; other actors may be among them.
    """
    names = [one["name"] for one in named]
    return [ReplicaID.from_full_id_str(name) for name in names if ReplicaID.is_full_id_str(name)]
