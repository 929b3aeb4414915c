"""KV events: whether instances and memory servers publish which blocks they have, where, and in which form."""

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from serving.config.key import key
from serving.config.upgrade_rules import ENGINES, KVCACHE, restarts, upgrades
from serving.errors import ConfigError

EventShape = Literal["map", "array", "maps"]
HashForm = Literal["uint64", "bytes"]

_PORTS = range(1, 65536)


@dataclass(frozen=True, slots=True)
class KvEventsConfig:
    """`[kv_events]`. Every instance and every memory server is a publisher with a socket of its own, as in vLLM."""

    UPGRADE = upgrades(restarts(*ENGINES, KVCACHE))
    LIVE_ONLY = "*"

    enabled: bool = key(
        "publish which blocks instances and the pool have; **token ids of prompts and responses leave the system**",
        default=False,
    )
    endpoint: str = key(
        "where the first publisher of a host listens, a ZeroMQ PUB socket; each further one takes the next free port",
        default="tcp://127.0.0.1:5557",
    )
    replay: str = key(
        "where it repeats batches that a subscriber missed, a ROUTER socket; ports as for `endpoint`; empty = nowhere",
        default="tcp://127.0.0.1:5657",
    )
    publishers: int = key(
        "ports from `endpoint` on, and from `replay` on, that a host's publishers may take",
        default=64,
        low=1,
        high=1024,
    )
    allow_remote: bool = key(
        "`endpoint` and `replay` may be reachable from other machines; they have neither keys nor encryption",
        default=False,
    )
    form: EventShape = key(
        "`map` = each event is a map with `type`, in an array; `array` = arrays only, as older vLLM; `maps` = the "
        "batch is a map, too, as the latest vLLM",
        default="map",
    )
    hashes: HashForm = key("block hashes as numbers of 64 bits, or whole as 16 bytes", default="uint64")
    namespaces: tuple[str, ...] = key(
        "tenants whose blocks are published; requests with a `cache_salt` never are", default=("default",), low=1
    )
    buffer_batches: int = key(
        "batches that a publisher keeps for replay; a subscriber that missed more receives the current state",
        default=10_000,
        low=1,
    )
    max_waiting: int = key(
        "changes that may wait to be published; beyond it, `AllBlocksCleared` is sent, and publishing starts again",
        default=100_000,
        low=1,
    )

    def addresses(self) -> "tuple[tuple[str, int], tuple[str, int] | None]":
        """Host and first port of `endpoint`, and of `replay`; None without it."""
        replay = _address("replay", self.replay) if self.replay else None
        return _address("endpoint", self.endpoint), replay


def check_kv_events(config: KvEventsConfig, tenants: frozenset[str]) -> None:
    """Check `[kv_events]`.

    Args:
        tenants: names of `[[namespaces]]`, and `default`.
    Raises: ConfigError if an address is not `tcp://` with host and port, may be reached from other machines without
        `allow_remote`, has too few ports behind it, overlaps the other, or a namespace is not a tenant's.
    """
    spans = {}
    for name, address in zip(("endpoint", "replay"), config.addresses(), strict=True):
        if address is None:
            continue
        host, port = address
        if not (config.allow_remote or is_local(host)):
            raise ConfigError(
                f"[kv_events] {name} = {getattr(config, name)!r} can be reached from other machines, and events contain"
                f" token ids: listen on 127.0.0.1, or set allow_remote = true"
            )
        spans[name] = range(port, port + config.publishers)
        if spans[name][-1] not in _PORTS:
            raise ConfigError(
                f"[kv_events] {name} has {_PORTS[-1] - port + 1} ports from {port} on for publishers ="
                f" {config.publishers}: choose a lower port"
            )
    if len(spans) == 2 and set(spans["endpoint"]) & set(spans["replay"]):
        raise ConfigError(
            f"[kv_events] endpoint and replay share ports: with publishers = {config.publishers} they must be as many"
            f" ports apart"
        )
    for name in config.namespaces:
        if name not in tenants:
            raise ConfigError(f"[kv_events] namespaces names {name!r}, which is no tenant: [[namespaces]] lists them")


def is_local(host: str) -> bool:
    """Whether only this machine reaches a host's address; other spellings than these count as remote."""
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def _address(name: str, text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme != "tcp" or not parts.hostname or not port or parts.path or parts.query:
        raise ConfigError(f'[kv_events] {name} = {text!r} is not an address such as "tcp://127.0.0.1:5557"')
    return parts.hostname, port
