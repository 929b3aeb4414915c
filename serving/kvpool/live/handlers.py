"""Handlers of a memory server, one small function for each kind of request, and the table that names them.

A handler holds the lock only while it uses the ledger. It returns a message, or a message and a payload. A request that
cannot be carried out raises `PoolError`, which becomes `Failed`.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from serving.errors import PoolError
from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import EntryTier, Found, GrantStatus, Kind
from serving.kvpool.core.ledger_answers import peek
from serving.kvpool.core.session import Holds, Session, Writing
from serving.kvpool.live.audit import audit, finish_removal
from serving.kvpool.live.frames import REST_S, PayloadRoom
from serving.kvpool.live.server_core import ServerCore
from serving.kvpool.live.ssd_worker import SsdWorker
from serving.values.kv_hints import HintOutcome
from serving.values.pool_view import NamespaceRecord

MAX_WAIT_S = 30.0
MAX_LISTED = 4096
HASH_BYTES = range(8, 65)


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """Things that handlers work with. `ssd_error`: why there is no SSD tier although there should be one."""

    core: ServerCore
    holds: Holds
    ssd: SsdWorker | None
    ssd_error: str
    facts: Callable[[], dict[str, Any]]
    set_namespaces: Callable[[Sequence[NamespaceRecord]], None]


Answer = m.Message | tuple[m.Message, Sequence[memoryview]]
_DONE = m.Done()
_REMOVAL_S = 10.0
"""Longest wait of a deletion for the removal of its files; after that it fails, and the client must repeat it."""


def handle(context: HandlerContext, session: Session, message: m.Message, payload: memoryview) -> Answer:
    """Carry out a request.

    Raises: PoolError if that is not possible; the connection stays usable.
    """
    handler = HANDLERS.get(type(message))
    if handler is None:
        raise PoolError(f"{type(message).__name__} is not accepted here")
    return handler(context, session, message, payload)


def _lookup(context: HandlerContext, session: Session, message: m.Lookup, _payload: memoryview) -> Answer:
    core = context.core
    start = time.perf_counter()
    _require_few(message.hashes)
    lease_s = message.lease_s if 0 < message.lease_s < core.settings.lease_s else core.settings.lease_s
    with core.changed:
        found = core.manager.lookup(message.space, message.hashes, session.client, core.now(), lease_s)
        core.dispatch()
    core.meters.observe("lookup", time.perf_counter() - start, _found_amounts(found))
    return m.Looked(found)


def _peek(context: HandlerContext, _session: Session, message: m.Peek, _payload: memoryview) -> Answer:
    _require_few(message.hashes)
    with context.core.changed:
        return peek(context.core.manager, message)


def _found_amounts(found: Sequence[Found | None]) -> tuple[tuple[str, int], ...]:
    """The bytes that their reader is about to read; the ledger counts the hits."""
    dram = ssd = 0
    for item in found:
        if item is not None:
            if item.tier is EntryTier.DRAM:
                dram += item.nbytes
            else:
                ssd += item.nbytes
    return ("bytes_found_dram", dram), ("bytes_found_ssd", ssd)


def _promote(context: HandlerContext, session: Session, message: m.Promote, _payload: memoryview) -> Answer:
    core = context.core
    start = time.perf_counter()
    _require_few(message.versions)
    wait_s = message.wait_s if 0 < message.wait_s < MAX_WAIT_S else MAX_WAIT_S if message.wait_s > 0 else 0.0
    with core.changed:
        now = core.now()
        deadline = now + wait_s
        core.manager.promote(message.versions, session.client, now)
        core.dispatch()
        waited = list(message.versions)
        while wait_s and not core.closing:
            waited = [version for version in waited if core.manager.pending(version)]
            left = deadline - core.now()
            if not waited or left <= 0:
                break
            core.changed.wait(left)
        found = tuple(core.in_dram(version) for version in message.versions)
    core.meters.observe("promote", time.perf_counter() - start)
    return m.Promoted(found)


def _prefetch(context: HandlerContext, _session: Session, message: m.Prefetch, _payload: memoryview) -> Answer:
    core = context.core
    _require_few(message.hashes)
    with core.changed:
        count = core.manager.prefetch(message.space, message.hashes, core.now())
        core.dispatch()
    return m.Prefetched(count.in_memory, count.loading, count.missing, count.refused)


def _release(context: HandlerContext, session: Session, message: m.ReleaseLeases, _payload: memoryview) -> Answer:
    core = context.core
    with core.changed:
        core.manager.release(message.versions, session.client, core.now())
        core.dispatch()
    return _DONE


def _report(context: HandlerContext, _session: Session, message: m.Report, _payload: memoryview) -> Answer:
    _require_few(message.versions)
    for version in message.versions:
        right = context.core.verify(version, remove=True)
        if right is not None:
            context.core.meters.add("reports_refuted" if right else "reports_confirmed")
    return _DONE


def _reserve(context: HandlerContext, session: Session, message: m.Reserve, _payload: memoryview) -> Answer:
    core = context.core
    start = time.perf_counter()
    _require_few(message.items)
    for block_hash, nbytes in message.items:
        if len(block_hash) not in HASH_BYTES or nbytes <= 0:
            raise PoolError(f"an entry of {nbytes} bytes under a hash of {len(block_hash)} bytes is not valid")
    with core.changed:
        now = core.now()
        grants = core.manager.reserve(message.space, message.items, session.client, now, message.kind)
        core.dispatch()
    model = message.space.layout if message.kind is Kind.MODEL else None
    for (_, nbytes), grant in zip(message.items, grants, strict=True):
        if grant.status is GrantStatus.GRANTED:
            session.writing[grant.version] = Writing(grant.offset, nbytes, now, model)
    core.meters.observe("reserve", time.perf_counter() - start)
    return m.Reserved(grants)


def _commit(context: HandlerContext, session: Session, message: m.Commit, _payload: memoryview) -> Answer:
    core = context.core
    _require_few(message.items)
    with core.changed:
        now = core.now()
        ok = tuple(core.manager.commit(version, digest, session.client, now) for version, digest in message.items)
        for (version, _), good in zip(message.items, ok, strict=True):
            writing = session.writing.get(version)
            if good and writing is not None and writing.model is not None:
                core.models[version] = writing.model
        core.dispatch()
    for (version, _), good in zip(message.items, ok, strict=True):
        writing = session.writing.pop(version, None)
        if good and writing is not None:
            core.meters.observe("put", now - writing.since, (("bytes_written", writing.nbytes),))
    return m.Committed(ok)


def _abort(context: HandlerContext, session: Session, message: m.Abort, _payload: memoryview) -> Answer:
    core = context.core
    _require_few(message.versions)
    with core.changed:
        for version in message.versions:
            session.writing.pop(version, None)
            core.manager.abort(version, session.client, core.now())
        core.dispatch()
    return _DONE


def _hold(context: HandlerContext, session: Session, message: m.Hold, _payload: memoryview) -> Answer:
    if session.process is None:
        raise PoolError("only processes on this server's node may hold entries; read copies instead")
    with context.core.changed:
        held = context.holds.hold(session.process, message.versions, context.core.now())
        context.core.dispatch()
    if not held:
        raise PoolError("some of these entries are no longer in memory; look them up again")
    return _DONE


def _unhold(context: HandlerContext, session: Session, message: m.Unhold, _payload: memoryview) -> Answer:
    if session.process is not None:
        with context.core.changed:
            context.holds.unhold(session.process, message.versions, context.core.now())
            context.core.dispatch()
    return _DONE


def _read(context: HandlerContext, _session: Session, message: m.Read, _payload: memoryview) -> Answer:
    core = context.core
    _require_pieces(message.pieces)
    views: list[memoryview] = []
    with core.changed:
        for version, start, nbytes in message.pieces:
            found = core.in_dram(version)
            if found is None or not 0 <= start <= start + nbytes <= found.nbytes:
                break
            views.append(core.view(found.offset + start, nbytes))
    if not views and message.pieces:
        raise PoolError(f"entry {message.pieces[0][0]} is not in memory, or has no such bytes; look it up again")
    core.meters.add("bytes_sent", sum(map(len, views)))
    return m.Chunk(len(views)), views


def room_for(context: HandlerContext, session: Session, message: m.ToServer, nbytes: int) -> PayloadRoom:
    """Target of a request's payload: bytes of entries are received straight into their place.

    Notes in the session which pieces have a place; bytes without one are discarded.

    Raises: PoolError if the request and its payload do not match.
    """
    if not isinstance(message, m.Write):
        return PayloadRoom([memoryview(bytearray(nbytes))])
    _require_pieces(message.pieces)
    core, views, ok = context.core, [], []
    left_s = REST_S
    for version, start, size in message.pieces:
        writing = session.writing.get(version)
        leased_s = 0.0
        if writing is not None:
            leased_s = core.settings.write_lease_s - (core.now() - writing.since) if writing.model is None else REST_S
        if writing is None or leased_s <= 0 or not 0 <= start <= start + size <= writing.nbytes:
            views.append(memoryview(bytearray(max(0, size))))
            ok.append(False)
            continue
        views.append(core.view(writing.offset + start, size))
        ok.append(True)
        left_s = min(left_s, leased_s)
    session.written = tuple(ok)
    return PayloadRoom(views, time.monotonic() + left_s)


def _write(context: HandlerContext, session: Session, message: m.Write, _payload: memoryview) -> Answer:
    ok, session.written = session.written, ()
    if len(ok) != len(message.pieces):
        raise PoolError("a Write must contain its bytes")
    sizes = [size for (_, _, size), good in zip(message.pieces, ok, strict=True) if good]
    context.core.meters.add("bytes_received", sum(sizes))
    return m.Written(ok)


def _require_pieces(pieces: Sequence[m.Piece]) -> None:
    _require_few(pieces)
    nbytes = [size for _, _, size in pieces]
    if min(nbytes, default=0) < 0 or sum(nbytes) > m.MAX_CHUNK_BYTES:
        raise PoolError(f"a request moves at most {m.MAX_CHUNK_BYTES} bytes, not {sum(nbytes)}")


def _list(context: HandlerContext, session: Session, message: m.List, _payload: memoryview) -> Answer:
    """Pages of one listing are cut from the entries at its first page, less those removed since."""
    core = context.core
    limit = min(max(message.limit, 1), MAX_LISTED)
    if message.after <= 0 or not session.listing:
        session.listing = core.entries()
    start = bisect_right(session.listing, message.after, key=lambda one: one.version)
    page: list[m.ListedEntry] = []
    with core.changed:
        now = core.now()
        while start < len(session.listing) and len(page) < limit:
            one = session.listing[start]
            start += 1
            found = core.manager.found(one.version)
            if found is not None:
                in_dram = found.tier is EntryTier.DRAM
                age_s = now - one.last_use
                page.append(
                    m.ListedEntry(one.version, one.space, one.hash, one.kind, one.nbytes, in_dram, one.on_ssd, age_s)
                )
    if len(page) < limit:
        session.listing = []
    return m.Listed(tuple(page))


def _drop(context: HandlerContext, _session: Session, message: m.Drop, _payload: memoryview) -> Answer:
    core = context.core
    _require_few(message.versions)
    with core.changed:
        now = core.now()
        gone = tuple(core.manager.remove(version, now) for version in message.versions)
        core.dispatch()
    return m.Committed(gone)


def _claim(context: HandlerContext, _session: Session, message: m.Claim, _payload: memoryview) -> Answer:
    core = context.core
    _require_few(message.claims)
    _require_few([hash for claim in message.claims for run in claim.runs for hash in run.hashes])
    outcomes: list[HintOutcome] = []
    for claim in message.claims:
        with core.changed:  # each on its own, so that lookups get their turn
            outcomes.append(core.manager.claims.claim(message.space, claim, core.now()))
            core.dispatch()
    return m.Hinted(tuple(outcomes))


def _hint(context: HandlerContext, _session: Session, message: m.Hint, _payload: memoryview) -> Answer:
    core = context.core
    _require_few(message.actions)
    _require_few([hash for action in message.actions for hash in action.hashes])
    outcomes: list[HintOutcome] = []
    for action in message.actions:
        with core.changed:
            outcomes.append(core.manager.claims.hint(message.namespace, action, core.now()))
            core.dispatch()
    return m.Hinted(tuple(outcomes))


def _claims(context: HandlerContext, _session: Session, message: m.AskClaims, _payload: memoryview) -> Answer:
    core = context.core
    _require_few(message.versions)
    with core.changed:
        return m.ClaimsTold(core.manager.claims.of(message.versions, core.now()))


def _sessions(context: HandlerContext, _session: Session, message: m.AskSessions, _payload: memoryview) -> Answer:
    core = context.core
    with core.changed:
        limit = min(max(message.limit, 1), MAX_LISTED)
        return m.SessionsListed(core.manager.claims.sessions(message.namespace, limit, core.now()))


def _usage(context: HandlerContext, _session: Session, _message: m.AskUsage, _payload: memoryview) -> Answer:
    with context.core.changed:
        return m.Data(context.core.usage())


def _forget(context: HandlerContext, _session: Session, message: m.Forget, _payload: memoryview) -> Answer:
    core = context.core
    with core.changed:
        nbytes, entries = core.manager.delete_namespace(message.namespace, core.now())
        core.dispatch()
    if context.ssd is not None:
        finish_removal(core, context.ssd, message.namespace, _REMOVAL_S)
    elif context.ssd_error:
        raise PoolError(f"the files of {message.namespace!r} on disk remain: {context.ssd_error}; then delete it again")
    return m.Data({"bytes": nbytes, "entries": entries})


def _set_namespaces(
    context: HandlerContext, _session: Session, message: m.SetNamespaces, _payload: memoryview
) -> Answer:
    context.set_namespaces(message.namespaces)
    return _DONE


def _stats(context: HandlerContext, _session: Session, _message: m.Stats, _payload: memoryview) -> Answer:
    return m.Data(context.facts())


def _audit(context: HandlerContext, _session: Session, message: m.Audit, _payload: memoryview) -> Answer:
    return m.Data(audit(context.core, context.ssd, repair=message.repair))


def _require_few(items: Sequence[object]) -> None:
    if len(items) > m.MAX_ITEMS:
        raise PoolError(f"{len(items)} items in one request; at most {m.MAX_ITEMS}")


HANDLERS: dict[type[m.Message], Callable[[HandlerContext, Session, Any, memoryview], Answer]] = {
    m.Lookup: _lookup,
    m.Peek: _peek,
    m.Promote: _promote,
    m.Prefetch: _prefetch,
    m.ReleaseLeases: _release,
    m.Report: _report,
    m.Reserve: _reserve,
    m.Commit: _commit,
    m.Abort: _abort,
    m.Hold: _hold,
    m.Unhold: _unhold,
    m.Read: _read,
    m.Write: _write,
    m.List: _list,
    m.Drop: _drop,
    m.Claim: _claim,
    m.Hint: _hint,
    m.AskClaims: _claims,
    m.AskSessions: _sessions,
    m.AskUsage: _usage,
    m.Forget: _forget,
    m.SetNamespaces: _set_namespaces,
    m.Stats: _stats,
    m.Audit: _audit,
}
"""All requests after `Hello`."""
