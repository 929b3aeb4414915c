"""Proof that a memory server's ledger balances: all redundant data is counted again and compared."""

from collections.abc import Iterable, Mapping

from serving.errors import LedgerError
from serving.kvpool.core.claim_runs import ClaimRun
from serving.kvpool.core.entry import Entry, EntryTier, Kind
from serving.kvpool.core.guards import PIN
from serving.kvpool.core.inventory import Inventory
from serving.kvpool.core.promotions import Promotions
from serving.kvpool.core.quotas import Account
from serving.kvpool.core.spills import Spills
from serving.values.kv_hints import ClaimKind


def check_inventory(inventory: Inventory) -> None:
    """Prove that entries, extents, maps, orders, leases and accounts agree.

    Raises: LedgerError if not.
    """
    inventory.allocator.check()
    for version, entry in inventory.by_version.items():
        if version != entry.version:
            raise LedgerError(f"version {entry.version} is filed as {version}")
        _check_state(entry)
        _check_found(inventory, entry)
    _check_maps(inventory)
    _check_extents(inventory)
    _check_orders(inventory)
    _check_leases(inventory)
    _check_accounts(inventory)


def check_flows(inventory: Inventory, spills: Spills, promotions: Promotions, held: int) -> None:
    """Check that the counters of running spills and promotions agree with the entries.

    Raises: LedgerError if they do not.
    """
    entries = inventory.by_version.values()
    spilling = [entry for entry in entries if entry.spilling]
    if len(spilling) != spills.under_way or spills.under_way > inventory.settings.max_spills:
        raise LedgerError(f"{len(spilling)} entries spill, {spills.under_way} are counted")
    if any(not spills.file_busy(entry.space, entry.hash) for entry in spilling):
        raise LedgerError("a file that is being written is not known as such")
    leaving = sum(inventory.allocator.charge_at(entry.offset) for entry in spilling if entry.leaving)
    if leaving != spills.leaving_bytes:
        raise LedgerError(f"{leaving} bytes are leaving, {spills.leaving_bytes} are counted")
    files = sum(entry.nbytes for entry in entries if entry.on_ssd or entry.spilling)
    if files != inventory.ssd_used_bytes or files > inventory.settings.ssd_bytes:
        raise LedgerError(f"{files} bytes on SSD, {inventory.ssd_used_bytes} are counted")
    if sum(entry.loading for entry in entries) != promotions.under_way:
        raise LedgerError("the count of loads is wrong")
    if sum(bool(entry.holders) for entry in entries) != held:
        raise LedgerError("the count of held entries is wrong")


def _check_state(entry: Entry) -> None:
    """Only some combinations of flags mean anything."""
    version = entry.version
    writing = entry.writer is not None
    if writing and (entry.in_dram or entry.on_ssd or entry.spilling or entry.loading or entry.leases or entry.holders):
        raise LedgerError(f"version {version} is being written and more")
    if entry.loading and (entry.in_dram or not (entry.on_ssd or entry.hidden)):
        raise LedgerError(f"version {version} is loaded from nowhere, or twice")
    if entry.spilling and (not entry.in_dram or entry.on_ssd):
        raise LedgerError(f"version {version} is spilled from nowhere, or twice")
    if entry.leaving and not entry.spilling:
        raise LedgerError(f"version {version} leaves without a spill")
    if entry.holders and not entry.in_dram:
        raise LedgerError(f"version {version} is held without being in DRAM")
    if entry.hidden:
        if not (writing or entry.spilling or entry.loading or entry.leases or entry.holders):
            raise LedgerError(f"version {version} is hidden and not in use")
        if entry.on_ssd:
            raise LedgerError(f"version {version} is hidden and has a file")
    elif not (writing or entry.in_dram or entry.on_ssd):
        raise LedgerError(f"version {version} is nowhere")
    needs_extent = writing or entry.in_dram or entry.loading
    if (entry.offset >= 0) != needs_extent:
        raise LedgerError(f"version {version} has an extent that it does not need, or needs one")


def _check_found(inventory: Inventory, entry: Entry) -> None:
    if entry.shown != (entry.writer is None and not entry.hidden):
        raise LedgerError(f"version {entry.version} is found although it must not be, or vice versa")
    found = entry.answer
    if found is None:
        return
    tier, offset = (EntryTier.DRAM, inventory.base_offset + entry.offset) if entry.in_dram else (EntryTier.SSD, -1)
    reported = (found.hash, found.version, found.tier, found.offset, found.nbytes, found.checksum)
    if reported != (entry.hash, entry.version, tier, offset, entry.nbytes, entry.checksum):
        raise LedgerError(f"lookups answer {found} for version {entry.version}")


def _check_maps(inventory: Inventory) -> None:
    filed = 0
    for space, known in inventory.spaces().items():
        if not known:
            raise LedgerError(f"{space} is empty and still there")
        for hash, entry in known.items():
            filed += 1
            if (entry.space, entry.hash) != (space, hash) or inventory.by_version.get(entry.version) is not entry:
                raise LedgerError(f"version {entry.version} is filed under another hash, or is gone")
    shown = {version: entry for version, entry in inventory.by_version.items() if entry.shown}
    models = {version: entry for version, entry in shown.items() if entry.kind is Kind.MODEL}
    if len(shown) != inventory.shown or models != inventory.models:
        raise LedgerError(f"{len(shown)} entries are found, {inventory.shown} are counted; or models are missed")
    hidden = sum(entry.hidden for entry in inventory.by_version.values())
    if hidden != inventory.hidden or filed + hidden != len(inventory.by_version):
        raise LedgerError(f"{filed} entries filed and {hidden} hidden, of {len(inventory.by_version)}")


def _check_extents(inventory: Inventory) -> None:
    extents = {entry.offset: entry for entry in inventory.by_version.values() if entry.offset >= 0}
    if extents != inventory.at:
        raise LedgerError("entries and the map of their extents disagree")
    if {offset: entry.nbytes for offset, entry in extents.items()} != inventory.allocator.live:
        raise LedgerError("entries and the allocator disagree about extents in use")
    end = 0
    for offset, entry in sorted(extents.items()):
        if offset < end:
            raise LedgerError(f"the extent of version {entry.version} begins inside another one")
        end = offset + inventory.allocator.block_bytes(entry.nbytes)
    if end > inventory.allocator.capacity_bytes:
        raise LedgerError("an extent ends behind the region")


def _check_orders(inventory: Inventory) -> None:
    movable = {v for v, e in inventory.by_version.items() if e.in_dram and not e.hidden}
    if len(inventory.policy) != len(movable) or any(version not in inventory.policy for version in movable):
        raise LedgerError("the order of eviction does not have exactly the entries in DRAM")
    on_ssd = {v: e for v, e in inventory.by_version.items() if e.on_ssd}
    own = inventory.ssd_own
    owned = [version in own[entry.account].of(entry) for version, entry in on_ssd.items() if entry.account in own]
    if list(on_ssd) != sorted(inventory.ssd_order) or not all(owned) or len(owned) != sum(map(len, own.values())):
        raise LedgerError("the order of the SSD tier does not have exactly the entries on SSD")
    if any(entry.claims and entry.account not in own for entry in on_ssd.values()):
        raise LedgerError("a claimed entry on SSD is not known as such")


def _check_leases(inventory: Inventory) -> None:
    counts = inventory.leases.counts()
    leased = {v: e.leases for v, e in inventory.by_version.items() if e.leases}
    lent = sum(leased.values()) - sum(counts.values())
    if lent != inventory.leases.lent or any(leased.get(v, 0) < count for v, count in counts.items()):
        raise LedgerError("leases of clients and of entries disagree")
    if inventory.leases.leased != len(leased):
        raise LedgerError("the count of leased entries is wrong")
    if len(inventory.reservations) != sum(e.writer is not None for e in inventory.by_version.values()):
        raise LedgerError("reservations of clients and of entries disagree")


def _check_accounts(inventory: Inventory) -> None:
    sums: dict[str, list[int]] = {}
    orders: dict[str, set[int]] = {}
    for entry in inventory.by_version.values():
        if entry.hidden:
            continue
        held = sums.setdefault(entry.space.namespace, [0, 0])
        held[0] += entry.nbytes * (entry.offset >= 0)
        held[1] += entry.nbytes * (entry.on_ssd or (entry.spilling and not entry.leaving))
        if entry.writer is None:
            orders.setdefault(entry.space.namespace, set()).add(entry.version)
    accounts: Mapping[str, Account] = inventory.accounts.accounts()
    for namespace, account in accounts.items():
        if [account.dram_bytes, account.ssd_bytes] != sums.get(namespace, [0, 0]):
            raise LedgerError(f"the account of {namespace} is wrong")
        shown = orders.get(namespace, set())
        if account.shown.keys() != shown or account.order.keys() != (shown if account.quota_bytes else set()):
            raise LedgerError(f"the order of {namespace} does not have exactly its entries")
    if not sums.keys() <= accounts.keys():
        raise LedgerError("a namespace without account holds something")


def check_guards(inventory: Inventory, runs: Iterable[ClaimRun]) -> None:
    """Prove that counts and bytes of claims agree with all known runs. O(blocks). Raises: LedgerError if not."""
    claims: dict[int, int] = {}
    guarded: dict[int, int] = {}
    for run in runs:
        unit = PIN if run.kind is ClaimKind.PIN else 1
        for at, version in enumerate(run.versions):
            claims[version] = claims.get(version, 0) + run.live
            guarded[version] = guarded.get(version, 0) + (unit if at < run.cut else 0)
    guards, retained, pinned = inventory.guards, 0, 0
    for version, entry in inventory.by_version.items():
        wanted = (claims.get(version, 0), guarded.get(version, 0)) if entry.shown else (0, 0)
        if (entry.claims, entry.guards) != wanted:
            raise LedgerError(f"version {version} has {entry.claims} claims, {entry.guards} guards, not {wanted}")
        pinned += entry.nbytes if entry.guards >= PIN else 0
        retained += entry.nbytes if 0 < entry.guards < PIN else 0
    if (retained, pinned) != (guards.retained_bytes, guards.pinned_bytes):
        raise LedgerError(f"guarded bytes {guards.retained_bytes}, {guards.pinned_bytes}, not {retained}, {pinned}")
