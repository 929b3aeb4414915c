"""Eviction by quota: a namespace's own entries leave both tiers, whatever room there is."""

from serving.kvpool.core.entry import Entry
from serving.kvpool.core.inventory import Inventory
from serving.kvpool.core.quotas import Account

_SPARED = 64
"""Claimed entries that are passed over when a namespace must make room for itself."""


def quota_room(inventory: Inventory, account: Account, nbytes: int) -> bool:
    """Let a namespace have `nbytes` more, by evicting its own entries from both tiers, oldest first.

    No entry is evicted unless that succeeds. The oldest claimed ones are passed over if the others suffice.
    """
    lacking = account.lacks(nbytes)
    if not lacking:
        return True
    if nbytes > account.quota_bytes:
        return False
    victims: list[Entry] = []
    spared: list[Entry] = []
    by_version = inventory.by_version
    for version in account.order:
        entry = by_version[version]
        if not entry.pinned:
            if entry.claims and len(spared) < _SPARED:
                spared.append(entry)
                continue
            victims.append(entry)
            lacking -= entry.nbytes * (entry.in_dram + entry.on_ssd)
            if lacking <= 0:
                break
    while lacking > 0 and spared:
        victims.append(spared.pop(0))
        lacking -= victims[-1].nbytes * (victims[-1].in_dram + victims[-1].on_ssd)
    if lacking > 0:
        return False
    for entry in victims:
        inventory.counters.evicted_by_quota += 1
        inventory.hide(entry)
    return True


def trim_to_quotas(inventory: Inventory) -> None:
    """Let namespaces whose quota was lowered shrink to it."""
    for account in inventory.accounts.over():
        for version in list(account.order):
            entry = inventory.by_version[version]
            if not account.over_bytes:
                break
            if not entry.pinned:
                inventory.counters.evicted_by_quota += 1
                inventory.hide(entry)
