"""Operations on the pool driven by an event queue in virtual time, over real ledgers that may fail at any message."""

import heapq
from collections.abc import Callable, Sequence
from enum import Enum, auto
from hashlib import blake2b
from itertools import count
from typing import Any

from serving.ids import BlockHash
from serving.kvpool.core import messages as m
from serving.kvpool.core.batch_move import BatchMove
from serving.kvpool.core.entry import EntryView, Found, GrantStatus
from serving.kvpool.core.ledger_answers import found_in_dram, ledger_answer
from serving.kvpool.core.operation import (
    ClientOperation,
    PoolAnswer,
    PoolAsk,
    PoolClose,
    PoolEffect,
    PoolEvent,
    PoolFailure,
    PoolPost,
    PoolRead,
    PoolReadDone,
    PoolWrite,
    PoolWritten,
)
from serving.kvpool.core.ring import HashRing, RingServer
from serving.values.pool_outcome import MissReason
from tests.kvpool.core.ledger_driver import PAGE, SPACE, LedgerDriver, small_manager

ANSWER_S = 0.25
"""How long a server takes."""


class Fate(Enum):
    """What happens to a message to a server."""

    WELL = auto()
    AT_THE_EDGE = auto()
    """Responds at the exact deadline."""
    LATE = auto()
    """Executed, with a response just after the deadline, which arrives although its connection has ended."""
    SILENT = auto()
    """Executed, without a response."""
    GONE = auto()
    """Its connection broke before; not executed."""
    UNSENT = auto()
    """No time was left to send it; the connection stays usable."""
    REFUSED = auto()
    """Answered by `Failed`; the connection stays usable."""
    NONSENSE = auto()
    """Executed, with another response."""
    TWICE = auto()
    """Executed, with two responses."""
    SHORT = auto()
    """Executed, with a response of one item too few."""


FAILURES = {
    Fate.SILENT: MissReason.TIMEOUT,
    Fate.LATE: MissReason.TIMEOUT,
    Fate.UNSENT: MissReason.TIMEOUT,
    Fate.GONE: MissReason.UNREACHABLE,
    Fate.REFUSED: MissReason.ERROR,
    Fate.NONSENSE: MissReason.ERROR,
    Fate.SHORT: MissReason.ERROR,
}
"""What a client takes them for."""


class QueueServer:
    """A memory server: a ledger, its pages and files, and one connection at a time."""

    def __init__(self, name: str, numbers: "count[int]", slabs: int = 8, ssd_pages: int = 0) -> None:
        self.name = name
        first = 1000 * next(numbers)
        self.ledger = LedgerDriver(small_manager(slabs, ssd_bytes=ssd_pages * PAGE, first_version=first))
        self.manager = self.ledger.manager
        self.disk_works = True
        self._numbers = numbers
        self._connection = next(numbers)

    def close(self, now: float) -> None:
        """End the connection and its leases and reservations."""
        self.manager.client_gone(self._connection, now)
        self._connection = next(self._numbers)

    def put(self, hashes: Sequence[BlockHash], now: float = 0.0) -> None:
        """Blocks of one page each, whose checksum is their last byte."""
        for block in hashes:
            (grant,) = self.manager.reserve(SPACE, [(block, PAGE)], 0, now)
            if grant.status is not GrantStatus.GRANTED:
                self.ledger.do_all(now)  # others go to disk
                (grant,) = self.manager.reserve(SPACE, [(block, PAGE)], 0, now)
            self.ledger.write(grant.offset, PAGE, block[-1])
            assert self.manager.commit(grant.version, block[-1], 0, now)

    def handle(self, message: m.Message, now: float) -> m.Message:
        """Answer of a server to a request. Effects: those of the request on its ledger."""
        manager = self.manager
        match message:
            case m.Promote(versions, _):
                manager.promote(versions, self._connection, now)
                if self.disk_works:
                    self.ledger.do_all(now)
                return m.Promoted(tuple([found_in_dram(manager, version) for version in versions]))
            case m.Report(versions):
                for version in versions:
                    found = found_in_dram(manager, version)
                    if found is not None and not self.ledger.holds(found):
                        manager.distrust(version, now)
                return m.Done()
            case m.List(after, limit):
                return m.Listed(tuple([self._listed(view, now) for view in manager.entries(after)][:limit]))
        return ledger_answer(manager, message, self._connection, now)

    @staticmethod
    def _listed(view: EntryView, now: float) -> m.ListedEntry:
        age_s = now - view.last_use
        return m.ListedEntry(
            view.version, view.space, view.hash, view.kind, view.nbytes, view.in_dram, view.on_ssd, age_s
        )

    @property
    def in_use(self) -> int:
        """Leases and reservations of all clients."""
        stats = self.manager.stats()
        return stats.leased + stats.writing


Judge = Callable[[str, m.Message], Fate]
CopyJudge = Callable[[str, int], str | None]
"""Why the copy of the block of an index from or to a server fails; None = it does not."""


class QueueDriver:
    """Drives operations one after the other.

    Args:
        servers: number of servers.
        judge: decides the fate of each message.

    Attributes:
        said: sent messages, by server, including lost ones. closed: connections that an operation ended.
        contents: of written blocks, by index. got: of read blocks, by index.
        copy_s: duration of the copy of a block.
    """

    def __init__(self, servers: int, judge: Judge | None = None, **settings: int) -> None:
        numbers = count(1)
        self.servers = {f"s{i}": QueueServer(f"s{i}", numbers, **settings) for i in range(servers)}
        self.ring = HashRing([RingServer(name, 1.0) for name in self.servers])
        self.judge = judge or (lambda _server, _message: Fate.WELL)
        self.now = 100.0
        self.said: list[tuple[str, m.Message]] = []
        self.closed: list[str] = []
        self.contents: Sequence[int] = ()
        self.got: dict[int, int | None] = {}
        self.copy_s = 0.0
        self.judge_copy: CopyJudge = lambda _server, _index: None
        self._queue: list[tuple[float, int, PoolEvent]] = []
        self._order = count()

    def put(self, hashes: Sequence[BlockHash]) -> None:
        """Store each block on its primary."""
        for name, server in self.servers.items():
            server.put([one for one in hashes if self.ring.primary(one) == name])

    def drive(self, operation: ClientOperation) -> None:
        """Run until no message or copy is in progress, including responses without a waiter."""
        self._carry_out(operation, operation.start(self.now))
        while self._queue:
            self.now, _, event = heapq.heappop(self._queue)
            self._carry_out(operation, operation.on(event, self.now))

    def content_of(self, name: str, found: Found) -> int:
        """Content of a found entry in its server's memory."""
        (content,) = self.servers[name].ledger.read(found.offset, found.nbytes)
        assert content is not None
        return content

    @property
    def in_use(self) -> int:
        """Leases and reservations at all servers."""
        return sum(server.in_use for server in self.servers.values())

    def check(self) -> None:
        """Check that every ledger balances."""
        for server in self.servers.values():
            server.manager.check()

    def _later(self, at: float, event: PoolEvent) -> None:
        heapq.heappush(self._queue, (at, next(self._order), event))

    def _carry_out(self, operation: ClientOperation, effects: Sequence[PoolEffect]) -> None:
        failed: set[str] = set()
        for effect in effects:
            if isinstance(effect, PoolRead):
                self._read(effect)
                continue
            if effect.server in failed:
                continue
            match effect:
                case PoolWrite():
                    self._write(effect)
                case PoolClose():
                    self.closed.append(effect.server)
                    self.servers[effect.server].close(self.now)
                case PoolAsk() | PoolPost():
                    reason = self._send(effect)
                    if reason is not None:
                        failed.add(effect.server)
                        self._later(self.now, PoolFailure(effect.server, reason))

    def _read(self, order: PoolRead) -> None:
        at = self.now
        for good, (index, name, found) in enumerate(zip(order.indices, order.servers, order.found, strict=False)):
            word = MissReason.TIMEOUT.value if at >= order.until else self._copy_failure(name, index)
            (self.got[index],) = self.servers[name].ledger.read(found.offset, found.nbytes)
            at += self.copy_s
            if word is None and self.got[index] != found.checksum:
                word = MissReason.CHECKSUM.value
            if word is not None:
                self._later(at, PoolReadDone(good, MissReason(word)))
                return
        self._later(at, PoolReadDone(len(order.indices)))

    def _write(self, order: PoolWrite) -> None:
        at, server = self.now, self.servers[order.server]
        digests: list[int | str] = []
        for index, grant in order.grants:
            word = MissReason.TIMEOUT.value if at >= order.until else self._copy_failure(order.server, index)
            if word is None:
                server.ledger.write(grant.offset, PAGE, self.contents[index])
            digests.append(self.contents[index] if word is None else word)
            at += self.copy_s
        self._later(at, PoolWritten(order.server, digests))

    def _copy_failure(self, server: str, index: int) -> str | None:
        word = self.judge_copy(server, index)
        if word in (MissReason.UNREACHABLE.value, MissReason.TIMEOUT.value):
            self.servers[server].close(self.now)
        return word

    def _send(self, effect: PoolAsk | PoolPost) -> MissReason | None:
        """Send one message. Returns: the reason if it could not be sent."""
        server = self.servers[effect.server]
        self.said.append((effect.server, effect.message))
        fate = self.judge(effect.server, effect.message)
        if fate is Fate.GONE:
            server.close(self.now)
            return MissReason.UNREACHABLE
        if fate is Fate.UNSENT or effect.until < self.now:
            return MissReason.TIMEOUT
        asked = isinstance(effect, PoolAsk)
        if fate is Fate.REFUSED and asked:  # what needs no answer is never refused
            self._later(self.now, PoolFailure(effect.server, MissReason.ERROR))
            return None
        answer = server.handle(effect.message, self.now)
        if not asked:
            return None
        self._answer(effect.server, answer, fate, effect.until)
        return None

    def _answer(self, name: str, answer: m.Message, fate: Fate, until: float) -> None:
        at = min(self.now + ANSWER_S, until)
        match fate:
            case Fate.SILENT | Fate.LATE:
                # Its connection ends only then; other clients see no difference.
                self.servers[name].close(self.now)
                self._later(until, PoolFailure(name, MissReason.TIMEOUT))
                if fate is Fate.LATE:
                    self._later(until + 0.001, PoolAnswer(name, answer))
            case Fate.AT_THE_EDGE:
                self._later(until, PoolAnswer(name, answer))
            case Fate.NONSENSE:
                self._later(at, PoolAnswer(name, m.Done()))
            case Fate.SHORT:
                self._later(at, PoolAnswer(name, shortened(answer)))
            case _:
                self._later(at, PoolAnswer(name, answer))
                if fate is Fate.TWICE:
                    self._later(at, PoolAnswer(name, answer))


def shortened(answer: m.Message) -> m.Message:
    """A response without its last item."""
    match answer:
        case m.Looked(found):
            return m.Looked(found[:-1])
        case m.Promoted(found):
            return m.Promoted(found[:-1])
        case m.Reserved(grants):
            return m.Reserved(grants[:-1])
        case m.Committed(ok):
            return m.Committed(ok[:-1])
    return answer


def chain(count: int) -> list[BlockHash]:
    """Hashes of consecutive blocks: digests that differ in the last byte, which is their content."""
    return [BlockHash(blake2b(bytes([i]), digest_size=15).digest() + bytes([i + 1])) for i in range(count)]


def held_by(driver: QueueDriver) -> dict[str, set[BlockHash]]:
    """Hashes held by each server."""
    return {name: {view.hash for view in one.manager.entries()} for name, one in driver.servers.items()}


def moved(driver: QueueDriver, home: str, seconds: float = 8.0) -> list[m.ListedEntry]:
    """Move a server's first entries to the other servers. Returns: the entries that left it."""
    listed = driver.servers[home].handle(m.List(0, 8), driver.now)
    assert isinstance(listed, m.Listed)
    if not listed.entries:
        return []
    others = HashRing([RingServer(name, 1.0) for name in driver.servers if name != home])
    move = BatchMove(home, listed.entries, lambda entry: others.primary(entry.hash), driver.now + seconds)
    driver.contents = Contents(lambda index: driver.content_of(home, move.ready[index][1]))
    driver.drive(move)
    driver.check()
    assert move.result is not None
    return [*move.result.moved]


class Contents(Sequence[int]):
    """Contents that are determined when they are copied."""

    def __init__(self, of: Callable[[int], int]) -> None:
        self._of = of

    def __getitem__(self, index: Any) -> Any:
        return self._of(index)

    def __len__(self) -> int:
        return 1 << 30
