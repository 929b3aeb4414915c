"""Quotas: one account per namespace, and the order in which its own entries are evicted.

Both tiers count, each on its own: an entry in DRAM and on SSD counts twice.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamespaceUsage:
    """Holdings of one namespace on a server. `entries` are committed ones; bytes count those being written, too."""

    dram_bytes: int
    ssd_bytes: int
    entries: int


class Account:
    """One namespace.

    Attributes:
        shown: versions of its committed entries, in order of commit.
        order: the same in order of last use, the oldest first; empty without a quota, which needs no order.
        retained_bytes, pinned_bytes: of entries that its claims guard, see `guards.py`.
        claims: live runs of claimed blocks.
    """

    __slots__ = ("claims", "dram_bytes", "order", "pinned_bytes", "quota_bytes", "retained_bytes", "shown", "ssd_bytes")

    def __init__(self, quota_bytes: int = 0) -> None:
        """
        Args:
            quota_bytes: 0 = no limit.
        """
        self.quota_bytes = quota_bytes
        self.dram_bytes = 0
        self.ssd_bytes = 0
        self.retained_bytes = 0
        self.pinned_bytes = 0
        self.claims = 0
        self.shown: dict[int, None] = {}
        # An OrderedDict, because finding the first item of a plain dict gets slow after many deletions.
        self.order: OrderedDict[int, None] = OrderedDict()

    @property
    def over_bytes(self) -> int:
        """By how much it exceeds its quota; never negative."""
        return max(0, self.dram_bytes + self.ssd_bytes - self.quota_bytes) if self.quota_bytes else 0

    def lacks(self, nbytes: int) -> int:
        """Bytes that must be evicted from this account before `nbytes` more fit its quota; never negative."""
        return max(0, self.dram_bytes + self.ssd_bytes + nbytes - self.quota_bytes) if self.quota_bytes else 0


class AccountBook:
    """All accounts by namespace. An account lives as long as the server: names come from a list that people keep."""

    __slots__ = ("_accounts", "_quotas")

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._quotas: dict[str, int] = {}

    def of(self, namespace: str) -> Account:
        """The account of a namespace, opened when needed."""
        account = self._accounts.get(namespace)
        if account is None:
            account = self._accounts[namespace] = Account(self._quotas.get(namespace, 0))
        return account

    def set_quotas(self, quotas: Mapping[str, int]) -> None:
        """From now on these hold.

        Args:
            quotas: bytes by namespace; absent or 0 = no limit.
        """
        self._quotas = dict(quotas)
        for namespace, account in self._accounts.items():
            account.quota_bytes = quotas.get(namespace, 0)

    def over(self) -> Iterator[Account]:
        """Accounts that hold more than they may, as after a quota was lowered."""
        for namespace, quota in self._quotas.items():
            account = self._accounts.get(namespace) if quota else None
            if account is not None and account.over_bytes:
                yield account

    def usage(self) -> dict[str, NamespaceUsage]:
        """Holdings of each namespace, without empty ones."""
        return {
            namespace: NamespaceUsage(a.dram_bytes, a.ssd_bytes, len(a.shown))
            for namespace, a in self._accounts.items()
            if a.shown or a.dram_bytes or a.ssd_bytes
        }

    def accounts(self) -> Mapping[str, Account]:
        """All of them, for `check`."""
        return self._accounts
