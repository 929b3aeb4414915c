"""Responses in a Redis, so that any gateway can continue them.

    cloudmatrix:response:<namespace>:<id>    the response, deleted when it expires
    cloudmatrix:responses:<namespace>        hash: id -> when it was stored [Unix time, s] and its size [bytes]

Every call has a timeout. The rule for dropping responses is the same as in memory.
"""

import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from redis import asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from serving.errors import ConfigError, UnavailableError
from serving.gateway.core.kept_responses import KeepLimits, KeptEntry, overdue

TIMEOUT_S = 1.0
_PREFIX = "cloudmatrix"

T = TypeVar("T")


class RedisConnection:
    """A connection to the Redis of a configuration key, with a deadline for every call.

    Args:
        url: in the format of `[kvcache] directory`.
        setting: the configuration key with the address, for messages.
    Raises: ConfigError if the address is invalid; the message does not repeat it, as it may contain a password. The
        constructor does not connect.
    """

    def __init__(self, url: str, setting: str, timeout_s: float) -> None:
        self._setting = setting
        try:
            self._redis: Any = redis.Redis.from_url(
                url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
            )
        except (ValueError, TypeError):
            raise ConfigError(f"{setting} is not a Redis address such as redis://host:port/0") from None

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _ask(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except (RedisError, OSError) as error:
            message = f"the Redis of {self._setting}, which keeps responses, does not answer; try again"
            raise UnavailableError(message) from error


class RedisResponseStore(RedisConnection):
    """A `ResponseStore` that all gateways share.

    Args:
        url, setting: see `RedisConnection`.
    """

    place = "in the Redis that the gateways share"

    def __init__(self, url: str, limits: KeepLimits, setting: str, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(url, setting, timeout_s)
        self.limits = limits

    async def put(self, namespace: str, response_id: str, value: bytes) -> bool:
        """Store a response, and drop those beyond the limits.

        Returns: whether it was stored.
        Raises: UnavailableError.
        """
        if not self.limits.takes(len(value)):
            return False
        now, life_ms = time.time(), max(1, round(self.limits.seconds * 1000))
        index = _index(namespace)
        batch = self._redis.pipeline(transaction=True)
        batch.set(_key(namespace, response_id), value, px=life_ms)
        batch.hset(index, response_id, f"{now!r} {len(value)}")
        batch.pexpire(index, life_ms)
        batch.hgetall(index)
        *_, kept = await self._ask(batch.execute())
        gone = overdue([_entry(name, facts) for name, facts in kept.items()], self.limits, now)
        if gone:
            batch = self._redis.pipeline(transaction=True)
            batch.delete(*(_key(namespace, one) for one in gone))
            batch.hdel(index, *gone)
            await self._ask(batch.execute())
        return response_id not in gone

    async def get(self, namespace: str, response_id: str) -> bytes | None:
        """A stored response; None if it is not, or no longer, stored. Raises: UnavailableError."""
        found: bytes | None = await self._ask(self._redis.get(_key(namespace, response_id)))
        return found

    async def delete(self, namespace: str, response_id: str) -> bool:
        """Delete a response. Returns: whether it was stored. Raises: UnavailableError."""
        batch = self._redis.pipeline(transaction=True)
        batch.delete(_key(namespace, response_id))
        batch.hdel(_index(namespace), response_id)
        deleted, _ = await self._ask(batch.execute())
        return bool(deleted)


def _key(namespace: str, response_id: str) -> str:
    return f"{_PREFIX}:response:{namespace}:{response_id}"


def _index(namespace: str) -> str:
    return f"{_PREFIX}:responses:{namespace}"


def _entry(name: bytes, facts: bytes) -> KeptEntry:
    at, _, size = facts.decode().partition(" ")
    return KeptEntry(name.decode(), float(at), int(size))
