"""Model images in the pool: one copy per node, mapped by all of its replicas; fetched from a peer node or made once.

    load(key)     memory of this node ─► SSD of this node ─► a peer's memory or SSD ─► None: read the checkpoint
    store(key)    one process writes into a server of its own node, the others wait for it

An image is one entry, Kind.MODEL, on any server of a node. A process that maps it *holds* it: it is evicted only when
no process does. A mapping outlives its server, since the server's segment is a file that is only unlinked.

Failures of the pool do not raise: the result is None or False, and the log has the reason.
"""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

from hardware.ub.copy import checksum
from serving.errors import PoolError
from serving.ids import NodeId
from serving.kvpool.core.entry import Found, Grant, GrantStatus, Kind
from serving.kvpool.core.messages import Abort, Commit, Committed, Done, Hold, Report, Reserve, Reserved, Unhold
from serving.kvpool.live.link_driver import Placement, Scope
from serving.kvpool.live.model_peer import ModelEntry, fetch, in_memory, look, look_all, release, soon
from serving.kvpool.live.segments import ExtentMap, Segments
from serving.kvpool.live.server_link import ServerLink, hello_of
from serving.sockets.secrets import ClusterSecrets
from serving.values.pool_view import PoolView

logger = logging.getLogger(__name__)

POLL_S = 0.05
"""How often a process checks whether another one has finished an image."""
PATIENCE_S = 120.0
ROOM_S = 3.0
"""How long a server may take to make room by writing others to its SSD."""
_REPORT_S = 30.0
"""A server reads the whole image before it responds to a report of wrong bytes."""
_UNHOLD_TRIES = 5
_UNHOLD_PAUSE_S = 0.3


@dataclass
class MappedModel:
    """An image in this process, held on its server.

    Args:
        data: read-only; stays valid memory as long as anybody holds it or a part of it.
    """

    data: memoryview
    _forget: Callable[[bool], None] = field(repr=False)

    def release(self) -> None:
        """End this process's hold. The memory may be reused from now on. Twice is allowed."""
        forget, self._forget = self._forget, _nothing
        forget(False)

    def distrust(self) -> None:
        """Report wrong bytes; the server verifies them. Implies `release`."""
        forget, self._forget = self._forget, _nothing
        forget(True)


class ModelCache:
    """One thread's access to model images. A process should have one: the servers count its holds as one process's.

    Args:
        name: of the client, for the servers' logs.
        node: of this process.
        view: returns the latest view of the pool; cheap.
        scope: `node` = other nodes are not queried.
        verify: hash an image before it is used.
        patience_s: how long to wait while another process makes or fetches an image that this one needs.
    """

    def __init__(
        self,
        name: str,
        node: NodeId,
        secret: str | ClusterSecrets,
        view: Callable[[], PoolView],
        scope: Scope = "pool",
        *,
        verify: bool = True,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._node = node
        self._verify = verify
        self._patience_s = patience_s
        self._placement = Placement(view, scope, hello_of(name, node, secret), Segments())
        self._holds: Counter[tuple[str, int]] = Counter()  # a process holds an entry once, however often it is mapped

    def load(self, key: str) -> MappedModel | None:
        """The image, mapped, and held by this process until it ends or releases it.

        It is read from SSD or a peer node if this node's memory lacks it.
        """
        entry = ModelEntry.of(key)
        self._placement.refresh()
        image = self._load_here(entry)
        if image is None and self._pull(entry):
            image = self._load_here(entry)
        return image

    def store(self, key: str, nbytes: int, fill: Callable[[memoryview], None]) -> bool:
        """Put an image into memory of this node; if another process is just doing that, wait for it instead.

        Args:
            fill: writes all of the memory that it is given; called at most once.
        Returns: whether the image is in memory now.
        Raises: the exceptions of `fill`; its room is returned then.
        """

        def make(memory: memoryview) -> int:
            fill(memory)
            return checksum(memory)

        self._placement.refresh()
        return self._place(ModelEntry.of(key), nbytes, make)

    def close(self) -> None:
        """End all connections. Mapped images stay mapped, and held until this process ends."""
        self._placement.close()

    def _here(self, entry: ModelEntry) -> list[ServerLink]:
        """Servers of this node, in an order that all its processes agree on and that differs from image to image."""
        links = [link for link in self._placement.links.values() if link.record.node == self._node]
        return sorted(links, key=lambda link: blake2b(link.name.encode(), digest_size=8, key=entry.hash).digest())

    def _load_here(self, entry: ModelEntry) -> MappedModel | None:
        for link in self._here(entry):
            try:
                image = self._map(link, entry)
            except PoolError as error:
                logger.info("a model image cannot be mapped: %s", error)
                continue
            if image is not None:
                return image
        return None

    def _map(self, link: ServerLink, entry: ModelEntry) -> MappedModel | None:
        offer = look(link, entry)
        found = None if offer is None else in_memory(link, offer)
        if found is None:
            return None
        image = MappedModel(memoryview(b""), self._hold(link, found.version))
        release(link, found)
        try:
            image.data = ExtentMap(_segment(link), found.offset, found.nbytes).memory
        except PoolError:
            image.release()
            raise
        if self._verify and checksum(image.data) != found.checksum:
            logger.warning("the model image of memory server %s is damaged", link.name)
            image.distrust()
            return None
        return image

    def _hold(self, link: ServerLink, version: int) -> Callable[[bool], None]:
        """Hold an entry for this process.

        Returns: a function that ends the hold, and optionally reports the entry.
        """
        assert link.welcome is not None, "it has just been looked up there"
        place = (link.welcome.incarnation, version)
        self._holds[place] += 1

        def end(wrong: bool) -> None:
            self._holds[place] -= 1
            if wrong:
                with contextlib.suppress(PoolError):
                    link.ask(Done, Report((version,)), soon(_REPORT_S))
            if self._holds[place] <= 0:
                _insist(lambda: link.ask(Done, Unhold((version,)), soon()))

        try:
            link.ask(Done, Hold((version,)), soon())
        except PoolError:
            end(False)  # if only the answer was lost the server holds it, for as long as this process lives
            raise
        return end

    def _place(self, entry: ModelEntry, nbytes: int, make: Callable[[memoryview], int]) -> bool:
        """Makes the image here, once among all processes of the node.

        Args:
            make: fills the memory and returns its checksum.
        Returns: whether it is here now, made by whomever.
        """
        start = time.monotonic()
        patience_s = {GrantStatus.PRESENT: self._patience_s, GrantStatus.FULL: min(ROOM_S, self._patience_s)}
        while not self._is_here(entry):
            status = self._try_place(entry, nbytes, make)
            if status is GrantStatus.GRANTED:
                return True
            if time.monotonic() - start > patience_s.get(status, 0.0):
                logger.warning(
                    "a model image of %d bytes is not put into the pool, %s: each replica keeps its own copy; raise "
                    "[kvcache] ub_memory_mib to share one",
                    nbytes,
                    status.value,
                )
                return False
            # Another process makes it (if that one dies, its room is free again), or the server makes room.
            time.sleep(POLL_S)
            self._placement.refresh()
        return True

    def _is_here(self, entry: ModelEntry) -> bool:
        offers = look_all(self._here(entry), entry)
        for link, found in offers:
            release(link, found)
        return bool(offers)

    def _try_place(self, entry: ModelEntry, nbytes: int, make: Callable[[memoryview], int]) -> GrantStatus:
        """Write the image into the first server of this node with room, unless its entry exists or is being written.

        Returns: GRANTED if the image is in memory now; TOO_LARGE if no server can ever take it.
        """
        status = GrantStatus.TOO_LARGE
        for link in self._here(entry):
            if link.name in self._placement.ring.draining:
                continue
            try:
                wish = Reserve(entry.space, Kind.MODEL, ((entry.hash, nbytes),))
                grant = link.ask(Reserved, wish, soon()).grants[0]
            except PoolError as error:
                logger.info("a model image cannot be stored: %s", error)
                continue
            if grant.status is GrantStatus.GRANTED:
                return grant.status if self._write(link, grant, nbytes, make) else GrantStatus.TOO_LARGE
            if grant.status is GrantStatus.PRESENT:
                return grant.status
            if grant.status is not GrantStatus.TOO_LARGE:
                status = GrantStatus.FULL
        return status

    def _write(self, link: ServerLink, grant: Grant, nbytes: int, make: Callable[[memoryview], int]) -> bool:
        try:
            extent = ExtentMap(_segment(link), grant.offset, nbytes, writable=True)
        except PoolError as error:
            logger.warning("a model image cannot be written: %s", error)
            _abort(link, grant)
            return False
        try:
            digest = make(extent.memory)
        except BaseException:
            _abort(link, grant)
            raise
        try:
            kept = link.ask(Committed, Commit(((grant.version, digest),)), soon()).ok[0]
        except PoolError as error:
            logger.warning("a model image was written but not kept: %s", error)
            return False
        if not kept:
            logger.warning("a model image was not kept: writing it took longer than the pool allows")
            return False
        threading.Thread(target=extent.use_huge_pages, name="model-pages", daemon=True).start()
        return True

    def _pull(self, entry: ModelEntry) -> bool:
        """Fetches the image from another node into a server of this one."""
        if not self._here(entry):
            return False
        far = [link for link in self._placement.links.values() if link.record.node != self._node]
        offers = look_all(far, entry)
        try:
            return any(self._pull_from(link, entry, offer) for link, offer in offers)
        finally:
            for link, offer in offers:
                release(link, offer)

    def _pull_from(self, link: ServerLink, entry: ModelEntry, offer: Found) -> bool:
        try:
            return self._place(entry, offer.nbytes, lambda memory: fetch(link, entry, offer, memory))
        except PoolError as error:
            logger.info("a model image cannot be fetched: %s", error)
            return False


def _segment(link: ServerLink) -> str:
    assert link.welcome is not None, "a server that answered said where its segment is"
    return link.welcome.segment


def _abort(link: ServerLink, grant: Grant) -> None:
    with contextlib.suppress(PoolError):
        link.ask(Done, Abort((grant.version,)), soon())


def _nothing(_wrong: bool) -> None:
    return None


def _insist(ask: Callable[[], object]) -> None:
    """Repeat a failed request: a hold that is not ended keeps its memory as long as this process lives."""
    for _ in range(_UNHOLD_TRIES):
        with contextlib.suppress(PoolError):
            ask()
            return
        time.sleep(_UNHOLD_PAUSE_S)
