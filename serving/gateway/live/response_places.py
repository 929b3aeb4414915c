"""The stores of responses and of work that a configuration names."""

from collections.abc import Callable

from serving.config.gateway import GatewayConfig
from serving.config.serve import ServeConfig
from serving.gateway.api.responses.background_runs import BackgroundRuns
from serving.gateway.api.responses.kept import ResponseStore
from serving.gateway.api.work_store import MemoryWorkStore, WorkStore
from serving.gateway.core.kept_responses import KeepLimits
from serving.gateway.core.work_items import WorkLimits

_IN_MEMORY = ("memory", "embedded")


def response_limits(gateway: GatewayConfig) -> KeepLimits:
    """Limits of stored responses."""
    return KeepLimits(gateway.kept_responses, gateway.kept_responses_mib << 20, gateway.kept_response_s)


def work_limits(gateway: GatewayConfig) -> WorkLimits:
    """Limits of background responses: those of stored ones, but for their number."""
    kept = response_limits(gateway)
    return WorkLimits(gateway.background_responses, kept.size_bytes, kept.seconds, gateway.background_lease_s)


def stored_responses(
    config: ServeConfig, owner: str, clock: Callable[[], float]
) -> tuple[ResponseStore | None, BackgroundRuns]:
    """The store of a gateway's responses, see `response_store`, and its background responses.

    Args:
        owner: the gateway. clock: of its own memory.
    Raises: ConfigError.
    """
    limits = work_limits(config.gateway)
    runs = BackgroundRuns(work_store("response", config, limits) or MemoryWorkStore(limits, clock), owner)
    return response_store(config, response_limits(config.gateway)), runs


def response_store(config: ServeConfig, limits: KeepLimits) -> ResponseStore | None:
    """The Redis that stores responses; None if each gateway stores its own in memory.

    Raises: ConfigError if the address is invalid.
    Does not connect.
    """
    url, setting = _address(config)
    if limits.responses == 0 or url in _IN_MEMORY:
        return None
    from serving.gateway.live.redis_responses import RedisResponseStore  # its import costs 0.2 s

    return RedisResponseStore(url, limits, setting)


def work_store(kind: str, config: ServeConfig, limits: WorkLimits) -> WorkStore | None:
    """The Redis that stores work of a kind; None if each gateway stores its own in memory.

    Raises: ConfigError if the address is invalid.
    Does not connect.
    """
    url, setting = _address(config)
    if limits.items == 0 or url in _IN_MEMORY:
        return None
    from serving.gateway.live.redis_work import RedisWorkStore  # its import costs 0.2 s

    return RedisWorkStore(kind, url, limits, setting)


def _address(config: ServeConfig) -> tuple[str, str]:
    """Where both are stored, and the configuration key that says so."""
    if config.gateway.response_store != "auto":
        return config.gateway.response_store, "[gateway] response_store"
    return config.kvcache.directory, "[kvcache] directory"
