"""Upgrade of a running application, one deployment after another: the versions of each, and the order of the changes.

    record of what is deployed (in Ray's control store) ── compared with ──► the new configuration and code
                                   │
          orders, one for each deployment:  version · live keys · whether the new replica may start first

Serve replaces replicas when a deployment's version changes and calls `reconfigure` when only `user_config` does. So
the version contains all that needs a restart, and `user_config` the rest. The options `version` and `_internal` and
`get_serve_details` are internal to Serve and may change; only this module uses them.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any

import msgspec
import ray
from ray import serve

from hardware.ray_resources import NPU, UB_MEMORY
from serving.cluster.gcs_store import GcsStore
from serving.compiled import fingerprint
from serving.config.serve import ServeConfig
from serving.config.upgrade import WEIGHTS, UpgradePlan, live_values, other_weights, upgrade_plan, values_of, version_of
from serving.config.upgrade_rules import AUTOSCALER, GATEWAY, KVCACHE
from serving.errors import ModelError
from serving.kvpool.core.messages import PROTOCOL as POOL_PROTOCOL
from serving.model.parcel import model_version
from serving.wire.messages import PROTOCOL as LINK_PROTOCOL

RECORD_KEY = "deployed"
SURGE_PERCENT = 20
"""New replicas beyond the target while old ones serve, at least one: each loads the model, on cores that are in use."""
Begin = Callable[[str, Mapping[str, int]], Mapping[str, int]]
"""Called at the start of a stage with its name and the targets that the configuration changes. Returns: the targets in
effect, by deployment. Raises: any error that prevents the stage.
"""
Details = Mapping[str, Any]
"""Deployments by name, in Serve's description."""
PROTOCOLS = {"link": LINK_PROTOCOL, "pool": POOL_PROTOCOL}


@dataclass(frozen=True, slots=True)
class Order:
    """State that one deployment must reach, or keep for now.

    Args:
        version: of everything that requires new replicas.
        live: keys that running replicas apply in place.
        replicas: present target; 0 is possible.
        surge: whether there is capacity for a new replica in addition to the old ones.
        held: Ray's options of the running version, while this deployment waits for its turn.
    """

    version: str
    live: dict[str, Any]
    replicas: int
    surge: bool = False
    held: dict[str, Any] | None = None

    def options(self) -> dict[str, Any]:
        """Options of the Serve deployment."""
        options: dict[str, Any] = {
            "_internal": True,
            "version": self.version,
            "user_config": self.live,
            "max_surge_percent": SURGE_PERCENT if self.surge else 0,
        }
        if self.replicas:
            options["num_replicas"] = self.replicas
        if self.held is not None:
            options["ray_actor_options"] = self.held
        return options


@dataclass(frozen=True, slots=True)
class Record:
    """The last deployment.

    Args:
        values: of the configuration; digests of secrets.
        versions, live: of each deployment, as in its order.
    """

    code: str
    values: dict[str, Any]
    versions: dict[str, str]
    live: dict[str, dict[str, Any]]
    protocols: dict[str, int] = field(default_factory=dict)


class Rollout:
    """Rollout of a configuration: a first deployment or an upgrade.

    Args:
        config: sealed.
        app: name of the application.
        listing: lists its deployments; queries Serve by default.
        room: see `has_room`.
    Raises: SilentError if the control store does not respond.
    """

    def __init__(
        self,
        config: ServeConfig,
        app: str,
        store: GcsStore,
        listing: Callable[[str], Details] | None = None,
        room: Callable[[ServeConfig, str], bool] | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._app, self._listing, self._room = app, listing or _running, room or has_room
        self._running = self._listing(app)
        self._targets: Mapping[str, int] = {}
        self._before = read_record(store) if self._running else None
        code, values = fingerprint(), values_of(config) | {WEIGHTS: weights_of(config)}
        self.names = deployments(config)
        self._after = Record(
            code,
            values,
            {name: version_of(name, values, code) for name in self.names},
            {name: live_values(name, config) for name in self.names},
            PROTOCOLS,
        )

    def plan(self) -> UpgradePlan | None:
        """Consequences of the deployment; None if nothing runs."""
        before, after = self._before, self._after
        if before is None:
            return None
        return upgrade_plan(before.values, after.values, self.names, new_code=before.code != after.code)

    @property
    def at_once(self) -> bool:
        """Whether all change together: the new version is incompatible with the old one, or the pools differ."""
        before = self._before
        return (
            before is None
            or before.protocols != PROTOCOLS
            or set(before.versions) != set(self.names)
            or other_weights(before.values, self._after.values)  # their KV is incompatible
        )

    @property
    def runs(self) -> bool:
        """Whether the application was deployed before."""
        return bool(self._running)

    def stages(self, begin: Begin) -> Iterator[dict[str, Order]]:
        """Yield orders for all deployments, once per change. The caller deploys each before it requests the next.

        Effects: the record stores what has changed so far, so that a retry resumes from it.
        """
        if self.at_once or self._before is None:
            yield self.all(begin)
            return
        done, wanted = self._before, self._wanted()
        changing = [name for name in self.names if done.versions[name] != self._after.versions[name]]
        for number, name in enumerate(changing or self.names[:1], 1):
            stage = f"{name}, {number} of {len(changing)}" if changing else "no replica changes"
            self._begin(begin, stage, wanted)
            wanted = {}  # later stages keep targets set since
            turned = {**done.versions, name: self._after.versions[name]}
            later = {one for one in changing if turned[one] != self._after.versions[one]}
            live = {one: (done if one in later else self._after).live[one] for one in self.names}
            done = replace(self._after, versions=turned, live=live)
            self._write(done)
            yield {one: self._order(one, done, held=one in later) for one in self.names}

    def all(self, begin: Begin) -> dict[str, Order]:
        """Orders with which all deployments change together. Effects: writes the record."""
        self._begin(begin, f"{', '.join(self.names)} at once", self._wanted())
        self._write(self._after)
        return {name: self._order(name, self._after, held=False) for name in self.names}

    def _order(self, name: str, record: Record, *, held: bool) -> Order:
        running = self._running.get(name)
        return Order(
            record.versions[name],
            record.live[name],
            self._targets[name],
            surge=name == GATEWAY or (name != AUTOSCALER and running is not None and self._room(self._config, name)),
            held=running["deployment_config"]["ray_actor_options"] if held and running else None,
        )

    def _wanted(self) -> dict[str, int]:
        """The file's targets where they changed; other pools keep the size to which they were scaled."""
        if self._before is None:
            return self._file()
        before, after = self._before.values, self._after.values
        keys = {name: f"{name}.replicas" for name in self.names}
        changed = {name for name, key in keys.items() if before.get(key) != after.get(key)}
        return {name: target for name, target in self._file().items() if name in changed or name not in self._running}

    def _begin(self, begin: Begin, stage: str, wanted: Mapping[str, int]) -> None:
        """Effects: updates the targets, which may have changed since the previous stage."""
        started = begin(stage, wanted)
        self._running = self._listing(self._app)
        there = {name: int(one["target_num_replicas"]) for name, one in self._running.items()}
        self._targets = {**self._file(), **there, **started, **wanted}

    def _file(self) -> dict[str, int]:
        return {name: int(self._after.values.get(f"{name}.replicas", 1)) for name in self.names}

    def _write(self, record: Record) -> None:
        self._store.put(RECORD_KEY, msgspec.json.encode(asdict(record)))


def configuration_digest(config: ServeConfig) -> str:
    """Short digest of configuration and code, for display."""
    values = msgspec.json.encode([fingerprint(), values_of(config)], order="sorted")
    return blake2b(values, digest_size=6).hexdigest()


def deployments(config: ServeConfig) -> list[str]:
    """Deployments of a configuration, in upgrade order: each before the deployments that call it."""
    names = [*([KVCACHE] if config.kvcache.replicas else []), *config.pools, GATEWAY]
    return [*names, AUTOSCALER] if config.autoscaler.policy != "none" else names


def weights_of(config: ServeConfig) -> str:
    """Version of the weights that instances will load: of the file, or else of their content; empty if unknown.

    Effects: reads files.
    """
    try:
        return config.model.version or model_version(config.model.path)
    except ModelError:  # an instance reports it
        return ""


def read_record(store: GcsStore) -> Record | None:
    """The last deployment; None if there was none, or if its record has another format. Raises: SilentError."""
    kept = store.get(RECORD_KEY)
    if kept is None:
        return None
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(kept, type=Record)
    return None


def has_room(config: ServeConfig, name: str) -> bool:
    """Whether one node has free NPUs and UB memory for one more replica."""
    if name == KVCACHE:
        npus, memory = 0, config.kvcache.ub_memory_mib
    else:
        pool = config.pools[name]
        npus, memory = pool.npus_per_replica, pool.ub_memory_per_replica_mib
    free: Mapping[str, Mapping[str, float]] = ray._private.state.available_resources_per_node()
    return any(one.get(NPU, 0) >= npus and one.get(UB_MEMORY, 0) >= memory for one in free.values())


def _running(app: str) -> Details:
    """Deployments of the application in Serve's description; empty if it does not run."""
    from ray.serve.context import _get_global_client

    if app not in serve.status().applications:
        return {}
    client: Any = _get_global_client()
    found: Details = client.get_serve_details()["applications"].get(app, {}).get("deployments", {})
    return found
