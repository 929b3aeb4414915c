"""The store of responses that a configuration names."""

from serving.config.serve import ServeConfig
from serving.gateway.api.responses.kept import ResponseStore
from serving.gateway.core.kept_responses import KeepLimits


def response_store(config: ServeConfig, limits: KeepLimits) -> ResponseStore | None:
    """The Redis that stores responses; None if each gateway stores its own in memory.

    Raises: ConfigError if the address is invalid.
    Does not connect.
    """
    url, setting = config.gateway.response_store, "[gateway] response_store"
    if url == "auto":
        url, setting = config.kvcache.directory, "[kvcache] directory"
    if limits.responses == 0 or url in ("memory", "embedded"):
        return None
    from serving.gateway.live.redis_responses import RedisResponseStore  # its import costs 0.2 s

    return RedisResponseStore(url, limits, setting)
