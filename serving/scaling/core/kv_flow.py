"""How much KV moves between the pools, by what instances count."""

from collections.abc import Mapping

from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.core.totals import SourceTotals


class KvFlow:
    """Totals since the start of what was handed off, read from the KV-cache pool, and written to it [bytes]."""

    def __init__(self) -> None:
        self._totals = SourceTotals(3)

    def observe(self, sight: ClusterSnapshot) -> None:
        """Learn from one look. Simulated instances count the bytes that a real one would move."""
        for name, member in sight.members.items():
            counters: Mapping[str, int] = (member.facts.get("pool") or {}).get("counters", {})
            moved = (
                int(member.facts.get("handoff_bytes_in_total") or 0),
                counters.get("bytes_pulled", 0),
                counters.get("bytes_stored", 0),
            )
            self._totals.update(f"{name}/{member.incarnation}", moved, sight.at)

    @property
    def totals(self) -> tuple[float, float, float]:
        """Handed off, read, written."""
        handed_off, read, written = self._totals.sums
        return handed_off, read, written
