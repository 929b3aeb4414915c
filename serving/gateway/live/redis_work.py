"""Work items in a Redis, so that any gateway can run, read and continue them.

    cloudmatrix:work:<kind>:<namespace>               hash: id -> the item, as JSON; `#bytes` and `#adds` of all
    cloudmatrix:work:<kind>:<namespace>:<id>          the item's value
    cloudmatrix:work:<kind>:<namespace>:<id>:records  list of its records
    cloudmatrix:work:<kind>                           sorted set: <namespace>:<id> of what is not done, by end of lease

The rules are those of `core.work_items`. A gateway reads an item, applies the rule, and replaces the item in one atomic
step if it is still the one it read. Times are the gateways' clocks: where they differ by more than a lease, an item
changes its owner early, and the old one cannot write any more.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from serving.errors import UnavailableError
from serving.gateway.api.work_store import PAGE
from serving.gateway.core.work_items import (
    LeaseLostError,
    WorkItem,
    WorkLimits,
    added,
    appended,
    claimed,
    displaced,
    released,
)
from serving.gateway.live.redis_responses import TIMEOUT_S, RedisConnection

_ADDS = "#adds"
"""Field that changes with every new item, so that two gateways cannot both add the last one."""
_OWN = b"#"
"""First byte of fields that are no items."""
_ANY = 1 << 53
"""No limit of bytes; Lua computes exactly up to this number."""
_MOST_UNOWNED = 100
_MOST_SEEN = 1000
_TRIES = 20
"""Most times that one change is tried again because another gateway changed the item in between."""
_SWAP = """
-- KEYS: items, leases, value, records
-- ARGV: field to compare, its expected content, id, new item (empty = delete), end of lease (empty = none),
--       namespace:id, lifetime [ms], bytes added, limit of bytes, value (empty = unchanged), records ...
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
local bytes = tonumber(ARGV[8])
if bytes > 0 and (tonumber(redis.call('HGET', KEYS[1], '#bytes') or 0)) + bytes > tonumber(ARGV[9]) then return 2 end
redis.call('HINCRBY', KEYS[1], '#bytes', bytes)
if ARGV[1] == '#adds' then redis.call('HINCRBY', KEYS[1], '#adds', 1) end
if ARGV[4] == '' then
    redis.call('HDEL', KEYS[1], ARGV[3])
    redis.call('ZREM', KEYS[2], ARGV[6])
    redis.call('DEL', KEYS[3], KEYS[4])
    return 1
end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
if ARGV[5] == '' then redis.call('ZREM', KEYS[2], ARGV[6]) else redis.call('ZADD', KEYS[2], ARGV[5], ARGV[6]) end
if ARGV[10] ~= '' then redis.call('SET', KEYS[3], ARGV[10]) end
for i = 11, #ARGV do redis.call('RPUSH', KEYS[4], ARGV[i]) end
for _, key in ipairs({KEYS[1], KEYS[3], KEYS[4]}) do redis.call('PEXPIRE', key, ARGV[7]) end
return 1
"""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WorkItem).decode
Rule = Callable[[WorkItem, float], WorkItem | None]


class RedisWorkStore(RedisConnection):
    """A `WorkStore` that all gateways share.

    Args:
        kind: of the work; each kind has items and limits of its own.
        url, setting: see `RedisConnection`.
        clock: Unix time [s].
    """

    place = "in the Redis that the gateways share"
    shared = True

    def __init__(
        self,
        kind: str,
        url: str,
        limits: WorkLimits,
        setting: str,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(url, setting, timeout_s)
        self.limits = limits
        self._clock = clock
        self._leases = f"cloudmatrix:work:{kind}"
        self._script: Any = self._redis.register_script(_SWAP)
        self._seen: dict[tuple[str, str], bytes] = {}
        """Own items as last written: a write then needs no read. The latest are the last."""

    async def add(self, namespace: str, name: str, value: bytes, owner: str, records: Sequence[bytes] = ()) -> WorkItem:
        """See `WorkStore.add`."""
        # A namespace that nobody uses for a lifetime is deleted by Redis, but not its leases.
        await self._ask(self._redis.zremrangebyscore(self._leases, "-inf", self._clock() - self.limits.seconds))
        for _ in range(_TRIES):
            adds = await self._ask(self._redis.hget(self._index(namespace), _ADDS)) or b""
            now = self._clock()
            item = added(owner, value, records, self.limits, now)
            await self._make_room(namespace, now, count=1, size=item.size)
            if (
                await self._swap(namespace, name, _ADDS, adds, item, item.size, value, records, self.limits.size_bytes)
                == 1
            ):
                return item
        raise UnavailableError("many gateways add work at once; try again")

    async def items(self, namespace: str) -> dict[str, WorkItem]:
        """See `WorkStore.items`."""
        now, kept = self._clock(), await self._all(namespace)
        return {name: item for name, item in kept.items() if not item.expired(self.limits, now)}

    async def get(self, namespace: str, name: str) -> WorkItem | None:
        """See `WorkStore.get`."""
        found = await self._ask(self._redis.hget(self._index(namespace), name))
        item = None if found is None else _decode(found)
        return None if item is None or item.expired(self.limits, self._clock()) else item

    async def value(self, namespace: str, name: str) -> bytes | None:
        """See `WorkStore.value`."""
        found: bytes | None = await self._ask(self._redis.get(self._key(namespace, name)))
        return found

    async def records(self, namespace: str, name: str, start: int, most: int = PAGE) -> list[bytes]:
        """See `WorkStore.records`."""
        key = f"{self._key(namespace, name)}:records"
        found: list[bytes] = await self._ask(self._redis.lrange(key, start, start + most - 1))
        return found

    async def claim(self, namespace: str, name: str, owner: str) -> WorkItem | None:
        """See `WorkStore.claim`."""
        return await self._change(namespace, name, lambda item, now: claimed(item, owner, self.limits, now))

    async def append(
        self,
        namespace: str,
        name: str,
        owner: str,
        records: Sequence[bytes] = (),
        *,
        state: str | None = None,
        done: bool = False,
        at: int | None = None,
    ) -> WorkItem:
        """See `WorkStore.append`."""

        def rule(item: WorkItem, now: float) -> WorkItem:
            return appended(item, owner, records, self.limits, now, state=state, done=done, at=at)

        after = await self._change(namespace, name, rule, records)
        if after is None:
            raise LeaseLostError("this work was deleted")
        if not after.done:
            self._seen[namespace, name] = _encode(after)
            if len(self._seen) > _MOST_SEEN:
                del self._seen[next(iter(self._seen))]
        return after

    async def release(self, namespace: str, name: str, owner: str) -> None:
        """See `WorkStore.release`."""
        if await self._change(namespace, name, lambda item, now: released(item, owner, now)) is None:
            raise LeaseLostError("this work was deleted")

    async def cancel(self, namespace: str, name: str) -> WorkItem | None:
        """See `WorkStore.cancel`."""

        def rule(item: WorkItem, _: float) -> WorkItem:
            return item if item.done else replace(item, cancelled=True)

        return await self._change(namespace, name, rule)

    async def delete(self, namespace: str, name: str) -> bool:
        """See `WorkStore.delete`."""
        while (found := await self._ask(self._redis.hget(self._index(namespace), name))) is not None:
            if await self._remove(namespace, name, found):
                return not _decode(found).expired(self.limits, self._clock())
        return False

    async def unowned(self) -> list[tuple[str, str]]:
        """See `WorkStore.unowned`. Also forgets what expired without an owner."""
        call = self._redis.zrangebyscore(self._leases, "-inf", self._clock(), start=0, num=_MOST_UNOWNED)
        found = []
        for member in await self._ask(call):
            namespace, _, name = member.decode().rpartition(":")
            if await self.get(namespace, name) is None:
                await self.delete(namespace, name)
                await self._ask(self._redis.zrem(self._leases, member))
            else:
                found.append((namespace, name))
        return found

    async def _change(self, namespace: str, name: str, rule: Rule, records: Sequence[bytes] = ()) -> WorkItem | None:
        """Apply a rule to an item until no other gateway changes it in between.

        Returns: the item; None if it is not stored, or the rule says so.
        """
        before, most = self._seen.pop((namespace, name), None), self.limits.size_bytes
        for _ in range(_TRIES):
            if before is None:
                before = await self._ask(self._redis.hget(self._index(namespace), name))
            now = self._clock()
            if before is None or (item := _decode(before)).expired(self.limits, now):
                return None
            after = rule(item, now)
            if after is None or after == item:
                return after
            size = after.size - item.size
            match await self._swap(namespace, name, name, before, after, size, b"", records, most):
                case 1:
                    return after
                case 2:
                    await self._make_room(namespace, now, count=0, size=size, must=after.done)
                    most = _ANY if after.done else most
            before = None
        raise UnavailableError("many gateways change this work at once; try again")

    async def _swap(
        self,
        namespace: str,
        name: str,
        field: str,
        expected: bytes,
        item: WorkItem | None,
        size: int,
        value: bytes = b"",
        records: Sequence[bytes] = (),
        most: int = _ANY,
    ) -> int:
        """Replace an item if a field has its expected content.

        Args:
            most: bytes that the namespace may have then, if any are added.
        Returns: 1 = done, 0 = the content is another one, 2 = no room.
        """
        key, life_ms = self._key(namespace, name), max(1, round(self.limits.seconds * 1000))
        lease = "" if item is None or item.done else repr(item.until)
        new = b"" if item is None else _encode(item)
        keys = [self._index(namespace), self._leases, key, f"{key}:records"]
        head = [field, expected, name, new, lease, f"{namespace}:{name}", life_ms, size, most, value]
        result: int = await self._ask(self._script(keys, [*head, *records]))
        return result

    async def _make_room(self, namespace: str, now: float, *, count: int, size: int, must: bool = False) -> None:
        """Delete what the limits displace. Raises: WorkFullError."""
        kept = await self._all(namespace)
        for name in displaced(kept, self.limits, now, count=count, size=size, must=must):
            await self._remove(namespace, name, _encode(kept[name]))

    async def _remove(self, namespace: str, name: str, before: bytes) -> bool:
        self._seen.pop((namespace, name), None)
        return await self._swap(namespace, name, name, before, None, -_decode(before).size) == 1

    async def _all(self, namespace: str) -> dict[str, WorkItem]:
        found = await self._ask(self._redis.hgetall(self._index(namespace)))
        return {name.decode(): _decode(item) for name, item in found.items() if not name.startswith(_OWN)}

    def _index(self, namespace: str) -> str:
        return f"{self._leases}:{namespace}"

    def _key(self, namespace: str, name: str) -> str:
        return f"{self._leases}:{namespace}:{name}"
