"""The instances that a gateway has links to: their latest reports, and the sequences sent since."""

from msgspec.structs import replace

from serving.errors import LedgerError
from serving.gateway.core.events import InstanceUp
from serving.gateway.core.route_decision import InstanceView
from serving.ids import ReplicaId
from serving.values.health import PathFault, hangs
from serving.values.instances import Status

_NO_FAULT = PathFault()


class KnownInstance:
    """One linked instance.

    Attributes:
        view: from the last report, with reservations; None before the first report.
        reported_at: gateway time of its last message [s].
        path_fault: the paths on which it cannot pull KV blocks, or only slowly.
    """

    __slots__ = ("busy", "kv_blocks", "node", "path_fault", "pool", "replica", "reported_at", "stuck", "view")

    def __init__(self, up: InstanceUp, now: float) -> None:
        self.replica = up.replica
        self.pool = up.pool
        self.node = up.node
        self.kv_blocks = up.kv_blocks
        self.reported_at = now
        self.view: InstanceView | None = None
        self.path_fault = _NO_FAULT
        self.stuck = False
        """Whether it responds but reports that its engine has been in one step for too long."""
        self.busy = 0
        """Number of its sequences in the last report."""


class Instances:
    """All instances linked to one gateway.

    Args:
        max_age_s: an instance that has been silent for longer counts as dead [s].
    """

    def __init__(self, max_age_s: float) -> None:
        self._max_age_s = max_age_s
        self._known: dict[ReplicaId, KnownInstance] = {}
        self._pools: dict[str, list[KnownInstance]] = {}
        self._troubled: set[ReplicaId] = set()

    def up(self, event: InstanceUp, now: float) -> None:
        """Note that a link is usable."""
        self.down(event.replica)
        known = self._known[event.replica] = KnownInstance(event, now)
        self._pools.setdefault(event.pool, []).append(known)

    def down(self, replica: ReplicaId) -> KnownInstance | None:
        """Remove an instance that is down. Returns: its last known state."""
        known = self._known.pop(replica, None)
        if known is not None:
            self._pools[known.pool].remove(known)
            self._troubled.discard(replica)
        return known

    def reported(self, replica: ReplicaId, now: float) -> None:
        """Note a message from an instance. Unknown ones are ignored."""
        known = self._known.get(replica)
        if known is not None:
            known.reported_at = now

    def report(self, replica: ReplicaId, status: Status, now: float) -> None:
        """Process an instance's load report. Effects: resets its reservations. Unknown ones are ignored."""
        known = self._known.get(replica)
        if known is None:
            return
        known.reported_at = now
        known.busy = status.running + status.waiting
        known.stuck = status.step_limit_s > 0 and hangs(status.progress_age_s, status.step_limit_s)
        lost, slow = status.lost_paths, status.slow_paths
        if lost or slow:
            known.path_fault = PathFault(lost, slow)
            self._troubled.add(replica)
        elif known.path_fault is not _NO_FAULT:
            known.path_fault = _NO_FAULT
            self._troubled.discard(replica)
        known.view = InstanceView(
            known.replica,
            known.pool,
            known.node,
            status.queued_tokens,
            known.busy,
            status.blocks_free,
            known.kv_blocks,
            0.0,
            status.draining,
            tokens_per_s=status.tokens_per_s,
            gateways=status.gateways,
            share=status.share,
            waiting=status.waiting,
            max_sequences=status.max_sequences,
            max_step_tokens=status.max_step_tokens,
        )

    def unreachable(self, replica: ReplicaId) -> None:
        """Note a failed send: its link will soon be reported down. Effects: it gets no work before its next report."""
        known = self._known.get(replica)
        if known is not None:
            known.view = None

    def find(self, replica: ReplicaId) -> KnownInstance | None:
        """A usable instance by name."""
        known = self._known.get(replica)
        return known if known is not None and not known.stuck else None

    def live(self, pool: str, now: float) -> list[KnownInstance]:
        """Instances of a pool that have reported their load and sent a message recently."""
        oldest = now - self._max_age_s
        return [
            known
            for known in self._pools.get(pool, ())
            if known.view is not None and not known.stuck and known.reported_at >= oldest
        ]

    def any_open(self, pools: tuple[str, ...], now: float) -> bool:
        """Whether an instance of these pools can take a prompt now and finish it: either role replaces the other."""
        oldest = now - self._max_age_s
        for pool in pools:
            for known in self._pools.get(pool, ()):
                if (view := known.view) is not None and not view.draining and not known.stuck:
                    if known.reported_at >= oldest:
                        return True
        return False

    def path_faults(self, pool: str, now: float) -> dict[ReplicaId, PathFault]:
        """Bad paths of a pool's instances, by instance; without instances that drain.

        Returns: empty if no path is bad.
        """
        if not self._troubled:  # nearly always
            return {}
        live = self.live(pool, now)
        if all([known.path_fault is _NO_FAULT for known in live]):
            return {}
        return {known.replica: known.path_fault for known in live if known.view is not None and not known.view.draining}

    def views(self) -> list[InstanceView]:
        """Views of all instances that have reported their load, in any state."""
        return [view for known in self._known.values() if (view := known.view) is not None]

    def path_fault(self, replica: ReplicaId) -> PathFault:
        """The known bad paths of one instance."""
        known = self._known.get(replica)
        return _NO_FAULT if known is None else known.path_fault

    def reserve(self, replica: ReplicaId, tokens: int, blocks: int) -> None:
        """Reserve for a sequence sent to an instance, until a report includes it."""
        known = self._known.get(replica)
        if known is not None and (view := known.view) is not None:
            known.view = replace(
                view,
                reserved_tokens=view.reserved_tokens + tokens,
                reserved_sequences=view.reserved_sequences + 1,
                reserved_blocks=view.reserved_blocks + blocks,
            )


# KV capacity that running sequences are expected to need for their further output.
#
# A view reports the blocks free now, but recently started sequences will take more. Each is expected to grow by the
# tokens that it may still generate, at most `most_tokens`; generated tokens are in the view already, so the expectation
# shrinks with every token received. Only this gateway's own sequences are counted.

RESERVE_TOKENS = 256
"""Expected tokens of a response of unknown length: Azure's conversations have a median of 129 output tokens and a mean
of 211. A larger value would reserve capacity for output that may never be generated."""


class OutputReserve:
    """Expected growth of one gateway's running sequences, by instance."""

    __slots__ = ("_block_tokens", "_left", "_most", "_total")

    def __init__(self, block_tokens: int, most_tokens: int = RESERVE_TOKENS) -> None:
        self._block_tokens = block_tokens
        self._most = most_tokens
        self._left: dict[str, tuple[ReplicaId, int]] = {}
        self._total: dict[ReplicaId, int] = {}

    def expected_blocks(self, tokens_left: int) -> int:
        """Expected growth of a sequence that may generate this many tokens [blocks]."""
        return -(-min(max(tokens_left, 0), self._most) // self._block_tokens)

    def book(self, name: str, replica: ReplicaId, tokens_left: int) -> None:
        """Reserve KV for the tokens that a sequence may generate at an instance, replacing its earlier booking."""
        self.drop(name)
        expected = min(max(tokens_left, 0), self._most)
        self._left[name] = replica, expected
        self._total[replica] = self._total.get(replica, 0) + expected

    def grew(self, name: str, tokens: int) -> None:
        """Count new tokens of a sequence. Unknown names are ignored."""
        booked = self._left.get(name)
        if booked is None or not booked[1]:
            return
        replica, left = booked
        now = max(0, left - tokens)
        self._left[name] = replica, now
        self._total[replica] -= left - now

    def drop(self, name: str) -> None:
        """Drop the booking of a sequence that ended or moves. Unknown names are ignored."""
        booked = self._left.pop(name, None)
        if booked is None:
            return
        replica, left = booked
        if total := self._total.get(replica, 0) - left:
            self._total[replica] = total
        else:
            self._total.pop(replica, None)

    def blocks(self, replica: ReplicaId) -> int:
        """Blocks that this instance's sequences are still expected to take."""
        return -(-self._total.get(replica, 0) // self._block_tokens)

    def check(self) -> None:
        """Check that the sums are those of the parts.

        Raises: LedgerError if they are not.
        """
        sums: dict[ReplicaId, int] = {}
        for replica, left in self._left.values():
            sums[replica] = sums.get(replica, 0) + left
        if {k: v for k, v in sums.items() if v} != {k: v for k, v in self._total.items() if v}:
            raise LedgerError(f"expected growth is {self._total}, its parts sum to {sums}")
