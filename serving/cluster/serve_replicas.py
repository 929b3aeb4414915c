"""Ray Serve's replicas, by the names of their actors: its status omits those of deployments being deleted."""

from collections.abc import Iterable, Mapping

from ray.serve._private.common import ReplicaID


def replicas_among(named: Iterable[Mapping[str, str]]) -> list[ReplicaID]:
    """Replicas of all applications.

    Args:
        named: result of `ray.util.list_named_actors(all_namespaces=True)`; other actors are ignored.
    """
    names = [one["name"] for one in named]
    return [ReplicaID.from_full_id_str(name) for name in names if ReplicaID.is_full_id_str(name)]
