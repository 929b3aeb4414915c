"""The configuration as it is handed to other processes: without anything that opens a door.

Ray keeps what replicas are made of in its control store, which may lie on disk, and shows it to whoever asks its
dashboard. Nobody but the gateways compares keys, and they compare digests.
"""

from dataclasses import replace

from serving.config.serve import ServeConfig
from serving.gateway.api.settings import hash_api_key


def sealed(config: ServeConfig) -> ServeConfig:
    """A configuration whose API keys are their digests, in hexadecimal, and whose salt is not told."""
    gateway = replace(config.gateway, api_keys=_digests(config.gateway.api_keys))
    gateway = replace(gateway, admin_keys=_digests(config.gateway.admin_keys))
    namespaces = tuple(replace(one, api_keys=_digests(one.api_keys)) for one in config.namespaces)
    return replace(config, gateway=gateway, namespaces=namespaces, kvcache=replace(config.kvcache, salt=""))


def salt_of(config: ServeConfig) -> bytes | None:
    """The secret from which gateways make the salts of namespaces, if the configuration names one; else the system has
    one of its own."""
    salt = config.kvcache.salt
    return hash_api_key(salt) if salt else None


def unsealed(digests: tuple[str, ...]) -> tuple[bytes, ...]:
    """The digests of a sealed configuration.

    Raises: ValueError for keys that are not sealed.
    """
    return tuple(bytes.fromhex(digest) for digest in digests)


def _digests(keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(hash_api_key(key).hex() for key in keys)
