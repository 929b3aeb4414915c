"""Deployments as the board sees them: the targets that one sets are no person's, and the board's own moves wait."""

from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.core.holds import ScalingHolds
from serving.values.deployment import DeploymentNotice

QUIET_S = 10.0
"""Time from the notice until Serve has the stage, on a busy machine. A target that the board set meanwhile would be
overwritten."""


class DeploymentWatch:
    """Notices of deployments. Time is passed in.

    Args:
        holds: keeps the targets that are expected, so that the board's own death does not forget them.
    """

    def __init__(self, holds: ScalingHolds) -> None:
        self._holds = holds
        self._quiet_until = 0.0
        self._over = False
        self._author = ""
        """Of the deployment that began last."""

    def hear(self, notice: DeploymentNotice, sight: ClusterSnapshot, now: float) -> dict[str, int]:
        """A stage begins, or the deployment is over.

        Returns: the targets to deploy: the notice's, and of all other deployments those that stand.
        """
        if notice.over:
            if notice.author == self._author:  # not one whose lease has passed to another
                self._over, self._quiet_until = True, 0.0
            return {}
        self._author, self._over, self._quiet_until = notice.author, False, now + QUIET_S
        standing = {name: seen.target for name, seen in {**sight.others, **sight.deployments}.items()}
        targets = standing | notice.targets
        self._holds.expect(targets)
        return targets

    def quiet(self, now: float) -> bool:
        """Whether targets of the board's own have to wait."""
        return now < self._quiet_until

    def explains(self, pool: str, target: int) -> bool:
        """Whether a target that was not set by the board is that of a deployment."""
        return self._holds.deployed.get(pool) == target

    def looked(self) -> None:
        """All targets have been compared. Effects: those of a deployment that is over are expected no longer."""
        if self._over:
            self._over = False
            self._holds.expect({})

    def overruled(self, pool: str) -> None:
        """The board has set another target since."""
        left = {name: target for name, target in self._holds.deployed.items() if name != pool}
        self._holds.expect(left)
