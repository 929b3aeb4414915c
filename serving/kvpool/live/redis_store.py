"""The controller's state in a Redis: servers as keys that expire, namespaces and quotas in one hash.

    cloudmatrix:session                    the start of the system that wrote this
    cloudmatrix:namespaces                 hash: name -> quota [bytes], or JSON of its record
    cloudmatrix:servers:<session>          set: names of servers
    cloudmatrix:server:<session>:<name>    JSON of its record, expires `ttl_s` after its last save

A database belongs to one system at a time; `redis://host/3` names another database of the same Redis. Each save is one
transaction, so that readers never get half a state. Every call has a timeout. After an error the connection is closed
and the next call opens a new one, so a restarted Redis needs no action.
"""

from collections.abc import Callable
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from serving.errors import ConfigError, PoolError, PoolTimeoutError, PoolUnreachableError, in_words
from serving.kvpool.core.controller import ControlState
from serving.values.pool_view import NamespaceRecord, ServerRecord

TIMEOUT_S = 1.0
PREFIX = "cloudmatrix"
_SESSION = f"{PREFIX}:session"
_NAMESPACES = f"{PREFIX}:namespaces"

_record = msgspec.json.Decoder(ServerRecord)
_tenant = msgspec.json.Decoder(NamespaceRecord)


class RedisStore:
    """A `ControlStore`. Not thread-safe.

    Args:
        url: `redis://[user:password@]host:port/database`, `rediss://` with TLS, or `unix:///path/of/socket`.
        session: this start of the system; servers of others are ignored.
        timeout_s: of connecting, and of each response.
        setting: name of the Redis in error messages.
    Raises: ConfigError if the address is invalid; it does not repeat the address, which may contain a password. The
        constructor does not connect.
    """

    def __init__(
        self, url: str, session: str, timeout_s: float = TIMEOUT_S, setting: str = "[kvcache] directory"
    ) -> None:
        self._session = session
        self._setting = setting
        self._servers = f"{PREFIX}:servers:{session}"
        self._saved: set[str] = set()
        try:
            _require_database(url)
            self._redis: Any = redis.Redis.from_url(
                url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),  # the controller tries again by itself, and must not be kept waiting
            )
        except (ValueError, TypeError):
            raise ConfigError(
                f"{setting} is not a Redis address: it must look like redis://user:password@host:port/0, with a "
                "database's number last, and with %2F, %3F, %23, %40 for / ? # @ in the password"
            ) from None

    def load(self) -> ControlState | None:
        """The state, with the servers of this session that have not expired.

        Raises: PoolTimeoutError, PoolUnreachableError if there is no Redis; PoolError if it holds other data.
        """
        session = self._ask(lambda: self._redis.get(_SESSION))
        if session is None:
            return None
        namespaces = self._ask(lambda: self._redis.hgetall(_NAMESPACES))
        names = sorted(self._ask(lambda: self._redis.smembers(self._servers)))
        try:
            keys = [self._key(name.decode()) for name in names]
            servers = self._ask(lambda: self._redis.mget(keys)) if keys else []
            return ControlState(
                session.decode(),
                tuple(_record.decode(raw) for raw in servers if raw is not None),
                tuple(_namespace(name.decode(), kept) for name, kept in sorted(namespaces.items())),
            )
        except (ValueError, RecursionError) as error:  # msgspec's errors and those of Unicode are ValueErrors too
            raise PoolError(f"the Redis holds {PREFIX}:* of another program ({error}); give a database") from error

    def save(self, state: ControlState, ttl_s: float) -> None:
        """Replace the saved state, in one transaction.

        Raises: PoolTimeoutError, PoolUnreachableError if there is no Redis; PoolError if it refuses. Then the old state
            is still saved, unless only the response was lost.
        """
        ttl_ms = max(1, round(ttl_s * 1000))
        servers = {server.name: server for server in state.servers}
        gone = [self._key(name) for name in sorted(self._saved - servers.keys())]
        batch = self._redis.pipeline(transaction=True)
        batch.delete(_NAMESPACES, self._servers, *gone)
        batch.set(_SESSION, state.session)
        if state.namespaces:
            batch.hset(_NAMESPACES, mapping={one.name: _kept(one) for one in state.namespaces})
        for name, server in servers.items():
            batch.set(self._key(name), msgspec.json.encode(server), px=ttl_ms)
        if servers:
            batch.sadd(self._servers, *servers)
            batch.pexpire(self._servers, ttl_ms)
        self._ask(batch.execute)
        self._saved = set(servers)

    def ping(self) -> None:
        """Whether it is there.

        Raises: PoolTimeoutError, PoolUnreachableError, PoolError.
        """
        self._ask(self._redis.ping)

    def close(self) -> None:
        """Close the connection. The next call opens a new one."""
        self._redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _key(self, name: str) -> str:
        return f"{PREFIX}:server:{self._session}:{name}"

    def _ask(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - redis-py's answers have no types to name
        try:
            return call()
        except redis.exceptions.TimeoutError as error:
            raise PoolTimeoutError(f"the Redis of {self._setting} did not answer in time ({error})") from error
        except (redis.exceptions.ConnectionError, OSError) as error:
            raise PoolUnreachableError(f"the Redis of {self._setting} cannot be reached ({in_words(error)})") from error
        except redis.exceptions.RedisError as error:
            raise PoolError(f"the Redis of {self._setting} refused the request ({error})") from error


def _kept(record: NamespaceRecord) -> int | bytes:
    plain = record == NamespaceRecord(record.name, record.quota_bytes)
    return record.quota_bytes if plain else msgspec.json.encode(record)


def _namespace(name: str, kept: bytes) -> NamespaceRecord:
    return _tenant.decode(kept) if kept.startswith(b"{") else NamespaceRecord(name, int(kept))


def _require_database(url: str) -> None:
    """Raises: ValueError if an address names a database that is no number: Redis's client would take number 0."""
    parts = urlsplit(url)
    if parts.scheme != "unix" and not (parts.path.strip("/") or "0").isdecimal():
        raise ValueError("a database without a number")
