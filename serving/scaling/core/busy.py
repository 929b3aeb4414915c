"""Busy share of each instance: how much of the last seconds its engine spent in steps."""

from collections import deque

from serving.scaling.core.cluster_snapshot import ClusterSnapshot, SeenMember

BUSY_WINDOW_S = 10.0
"""Instances announce once a second: over ten of them, one more or less hardly shows."""


class BusyShares:
    """Shares by replica, from counters that only grow."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, deque[tuple[float, float]]]] = {}
        """By replica: its incarnation, and (when [s], busy time [s of the instance's clock]) of looks, oldest first."""
        self._scales: dict[str, float] = {}

    def observe(self, sight: ClusterSnapshot) -> None:
        """Learn from one look."""
        self._seen = {name: one for name, one in self._seen.items() if name in sight.members}
        for name, member in sight.members.items():
            self._observe(name, member, sight.at)

    def share(self, replica: str) -> float | None:
        """0..1 over at most `BUSY_WINDOW_S`; None = not known yet."""
        if replica not in self._seen:
            return None
        _, looks = self._seen[replica]
        if len(looks) < 2 or looks[-1][0] <= looks[0][0]:
            return None
        (begun, before), (ended, now) = looks[0], looks[-1]
        return min(1.0, max(0.0, (now - before) / (ended - begun) / self._scales[replica]))

    def _observe(self, name: str, member: SeenMember, at: float) -> None:
        busy_s, self._scales[name] = float(member.facts.get("busy_s") or 0.0), _scale(member)
        incarnation, looks = self._seen.get(name, ("", deque()))
        if incarnation != member.incarnation or (looks and busy_s < looks[-1][1]):
            looks = deque()
        looks.append((at, busy_s))
        while len(looks) > 2 and looks[1][0] <= at - BUSY_WINDOW_S:
            looks.popleft()
        self._seen[name] = member.incarnation, looks


def _scale(member: SeenMember) -> float:
    return float(member.facts.get("time_scale") or 1.0)
