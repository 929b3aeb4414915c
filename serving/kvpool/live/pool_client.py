"""A client of the KV-cache pool: finds, reads and writes entries on all memory servers as if they were one.

    client = PoolClient("prefill-0", node, secret, view=latest_view)
    find = client.lookup(space, hashes, deadline)            one round trip for any number of servers
    report = client.read(find, targets, deadline)            straight out of the servers' shared memory, verified
    client.write(space, [(hash, data), ...], deadline)

Failures of servers do not raise; the reports contain them. A client is used by one thread.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from serving.errors import PoolError
from serving.ids import BlockHash, NodeId
from serving.kvpool.core.batch_write import BatchWrite, NewEntry, store_report
from serving.kvpool.core.broadcast import Broadcast, claim_of
from serving.kvpool.core.entry import Found, Kind, Space
from serving.kvpool.core.messages import MAX_ITEMS, AskSessions, Claim, Hint, Hinted, Message, SessionsListed
from serving.kvpool.core.prefix_find import FoundPrefix, PrefixFind
from serving.kvpool.core.prefix_read import PrefixRead
from serving.kvpool.live.block_copies import BlockCopies, map_of
from serving.kvpool.live.link_driver import LinkDriver, Placement, Scope
from serving.kvpool.live.segments import Segments
from serving.kvpool.live.server_link import ServerLink, hello_of
from serving.sockets.secrets import ClusterSecrets
from serving.values.kv_hints import BlockClaim, HintAction, HintOutcome, SessionFacts, combined, merged_sessions
from serving.values.pool_outcome import FetchReport, StoreReport
from serving.values.pool_view import PoolView


@dataclass(frozen=True, slots=True)
class LeasedPrefix:
    """A found prefix, to be read or released by the client that found it.

    Args:
        links: by name, to the servers of its blocks.
        connections: to which connection of a link its entries are leased.
    """

    prefix: FoundPrefix = field(default_factory=FoundPrefix)
    links: Mapping[str, ServerLink] = field(default_factory=dict)
    connections: Mapping[str, int] = field(default_factory=dict)

    def split(self, indices: Sequence[int]) -> "tuple[LeasedPrefix, LeasedPrefix]":
        """These blocks of it, in this order, and the rest; each is to be read or released on its own."""
        chosen, rest = self.prefix.split(indices)
        return LeasedPrefix(chosen, self.links, self.connections), LeasedPrefix(rest, self.links, self.connections)

    @property
    def found(self) -> tuple[Found, ...]:
        """Entries of the leading blocks."""
        return self.prefix.found

    @property
    def blocks(self) -> int:
        """Leading blocks found."""
        return len(self.prefix.found)

    @property
    def nbytes(self) -> int:
        """Bytes of these blocks."""
        return sum([found.nbytes for found in self.prefix.found])


class PoolClient:
    """One thread's access to the pool.

    Args:
        name: of the client, for the servers' logs.
        node: of this process; segments of servers of the same node are mapped, others are read through connections.
        view: returns the latest view; called often, so it must be cheap and never block.
        scope: `node` = only servers of the client's own node.
        lease_s: how long found blocks stay in place; longer than any deadline.
        segments: mapped segments, shared with other clients of this process; None = its own.
    """

    def __init__(
        self,
        name: str,
        node: NodeId,
        secret: str | ClusterSecrets,
        view: Callable[[], PoolView],
        scope: Scope = "pool",
        lease_s: float = 5.0,
        segments: Segments | None = None,
    ) -> None:
        self.segments = Segments() if segments is None else segments
        """The segments that are mapped."""
        self.placement = Placement(view, scope, hello_of(name, node, secret), self.segments)
        """Ring and links, for callers that speak to one server (migration, model cache)."""
        self._lease_s = lease_s

    def lookup(self, space: Space, hashes: Sequence[BlockHash], deadline: float) -> LeasedPrefix:
        """The longest prefix of `hashes` in the pool.

        Args:
            deadline: on the scale of `time.monotonic`, like all deadlines of this module.
        Returns: the blocks found, leased for `lease_s`; pass them to `read` or `release`. Allow time for that: a silent
            server uses up the whole deadline of the lookup.
        """
        if not hashes:
            return LeasedPrefix()
        self.placement.refresh()
        links = self.placement.links
        find = PrefixFind(self.placement.ring, links, space, hashes[:MAX_ITEMS], self._lease_s, deadline)
        LinkDriver(links).drive(find)
        assert find.result is not None
        servers = {name: links[name] for name in dict.fromkeys(find.result.servers)}
        return LeasedPrefix(find.result, servers, {name: link.connection for name, link in servers.items()})

    def read(self, find: LeasedPrefix, targets: Sequence[memoryview], deadline: float) -> FetchReport:
        """Copy found blocks, verify each, and end their leases. Wrong bytes are reported to their server.

        Args:
            targets: one per block, writable, contiguous, of the block's size; may be fewer than found.
        Returns: the number of leading targets that are valid; the content of the others is undefined.
        """
        read = PrefixRead(find.prefix, len(targets), lambda name: find.links[name].record.capacity_bytes, deadline)
        copies = BlockCopies(self.segments, find.links, targets.__getitem__)
        LinkDriver(find.links, copies, find.connections).drive(read)
        assert read.result is not None
        return read.result

    def release(self, find: LeasedPrefix, deadline: float) -> None:
        """End the leases of a lookup whose blocks are not read. They may be evicted again."""
        self.read(find, (), deadline)

    def write(
        self,
        space: Space,
        items: Sequence[tuple[BlockHash, memoryview]],
        deadline: float,
        kind: Kind = Kind.CONTEXT,
    ) -> StoreReport:
        """Publish entries, each on the server that owns its hash. Lookups of all clients find them afterwards.

        Args:
            items: hash and contiguous bytes, which must not change during the call.
        Returns: the outcomes; an entry that fails is not written to another server.
        """
        self.placement.refresh()
        items = items[:MAX_ITEMS]
        owner = self.placement.ring.primary
        entries = [NewEntry(block, data.nbytes, owner(block)) for block, data in items]
        write = BatchWrite(space, kind, entries, deadline)
        links = self.placement.links
        LinkDriver(links, BlockCopies(self.segments, links, lambda index: items[index][1])).drive(write)
        assert write.result is not None
        return store_report(entries, write.result)

    def claim(self, space: Space, claims: Sequence[BlockClaim], deadline: float) -> list[HintOutcome]:
        """Claim blocks for sessions on all servers that have them.

        Returns: one outcome per claim, over all servers that responded.
        """
        self.placement.refresh()
        parts: dict[str, list[BlockClaim]] = {name: [] for name in self.placement.links}
        for claim in claims:
            for name, part in claim_of(claim, self.placement.ring, self.placement.links).items():
                parts[name].append(part)
        return self._outcomes({name: Claim(space, tuple(own)) for name, own in parts.items()}, len(claims), deadline)

    def hint(self, namespace: str, actions: Sequence[HintAction], deadline: float) -> list[HintOutcome]:
        """Carry out actions on a namespace's blocks on all servers.

        Returns: one outcome per action, over all servers that responded; MISSING without any.
        """
        self.placement.refresh()
        message = Hint(namespace, tuple(actions))
        return self._outcomes(dict.fromkeys(self.placement.links, message), len(actions), deadline)

    def sessions(self, namespace: str, limit: int, deadline: float) -> list[SessionFacts]:
        """Sessions of a namespace over all servers that respond, about the latest `limit` ones."""
        self.placement.refresh()
        answers = self._broadcast(dict.fromkeys(self.placement.links, AskSessions(namespace, limit)), deadline)
        return merged_sessions(one.sessions for one in answers if isinstance(one, SessionsListed))[:limit]

    def _outcomes(self, messages: Mapping[str, Message], count: int, deadline: float) -> list[HintOutcome]:
        answers = self._broadcast(messages, deadline)
        rows = [one.outcomes for one in answers if isinstance(one, Hinted) and len(one.outcomes) == count]
        return [combined([row[index] for row in rows]) for index in range(count)]

    def _broadcast(self, messages: Mapping[str, Message], deadline: float) -> list[Message]:
        broadcast = Broadcast(messages, deadline)
        LinkDriver(self.placement.links).drive(broadcast)
        return list((broadcast.result or {}).values())

    def warm(self, deadline: float) -> int:
        """Connect to all servers and map their segments, so that the first request is fast.

        Returns: servers connected.
        """
        self.placement.refresh()
        return sum(self._warm(link, deadline) for link in self.placement.links.values())

    def close(self) -> None:
        """End all connections, and with them leases and reservations. Shared segments stay mapped for others.

        The next call connects again.
        """
        self.placement.close()

    def _warm(self, link: ServerLink, deadline: float) -> bool:
        try:
            link.prepare(deadline)
            link.settle(deadline)
        except PoolError:
            return False
        map_of(self.segments, link)
        return True
