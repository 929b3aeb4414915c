"""The configuration for other processes: without secrets that grant access.

Ray stores the arguments of replicas in its control store, which may be on disk, and shows them to all clients of its
dashboard. Only gateways compare keys, and they compare digests.
"""

from dataclasses import replace

from serving.config.serve import ServeConfig
from serving.gateway.api.settings import hash_api_key


def sealed(config: ServeConfig) -> ServeConfig:
    """A configuration with API keys replaced by their digests, in hexadecimal, and without the salt."""
    gateway = replace(config.gateway, api_keys=_digests(config.gateway.api_keys))
    gateway = replace(gateway, admin_keys=_digests(config.gateway.admin_keys))
    namespaces = tuple(replace(one, api_keys=_digests(one.api_keys)) for one in config.namespaces)
    return replace(config, gateway=gateway, namespaces=namespaces, kvcache=replace(config.kvcache, salt=""))


def salt_of(config: ServeConfig) -> bytes | None:
    """The configured secret from which gateways derive the salts of namespaces; None = the system generates one."""
    salt = config.kvcache.salt
    return hash_api_key(salt) if salt else None


def unsealed(digests: tuple[str, ...]) -> tuple[bytes, ...]:
    """The digests in a sealed configuration.

    Raises: ValueError for keys that are not digests.
    """
    return tuple(bytes.fromhex(digest) for digest in digests)


def _digests(keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(hash_api_key(key).hex() for key in keys)
