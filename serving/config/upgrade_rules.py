"""Parties of a running system, and how a changed key takes effect: in place, by replacing replicas, or not before Ray
is started. Each section declares the rules of its keys as `UPGRADE`; docs/reference/configuration.md shows them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from serving.values.pool_kinds import ENGINE_POOLS

GATEWAY = "gateway"
KVCACHE = "kvcache"
AUTOSCALER = "autoscaler"
BOARD = "scaling board"
POOL_CONTROL = "pool control"
SERVE = "Serve"
ENGINES = ENGINE_POOLS
"""Engine pools; a mode starts some of them."""

NO_DEPLOYMENTS = (BOARD, POOL_CONTROL, SERVE)
"""Parties that exist in every configuration."""

BEFORE_RAY = "when Ray is started"
OWN_POOL = "own pool"
"""Of keys that several pools have: the pool whose section it is."""


@dataclass(frozen=True, slots=True)
class UpgradeRule:
    """How a change of a key takes effect.

    Args:
        restarts: parties whose replicas are replaced.
        in_place: parties that update and keep running.
    """

    restarts: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The rule as text for a table cell."""
        if self.restarts:
            names = "instances" if self.restarts[: len(ENGINES)] == ENGINES else self.restarts[0]
            others = self.restarts[len(ENGINES) :] if names == "instances" else self.restarts[1:]
            if others[: len(ENGINES)] == ENGINES:
                others = ("instances", *others[len(ENGINES) :])
            return f"restarts {', '.join((names, *others))}"
        return "in place" if self.in_place else BEFORE_RAY


def restarts(*parties: str) -> UpgradeRule:
    """A change replaces the replicas of these parties."""
    return UpgradeRule(restarts=parties)


def in_place(*parties: str) -> UpgradeRule:
    """These parties apply a change while they run."""
    return UpgradeRule(in_place=parties)


BEFORE_RAY_STARTS = UpgradeRule()


@dataclass(frozen=True, slots=True)
class Upgrades:
    """Upgrade rules of a section's keys."""

    default: UpgradeRule
    exceptions: Mapping[str, UpgradeRule]

    def of(self, name: str) -> UpgradeRule:
        """The rule of one key."""
        return self.exceptions.get(name, self.default)


def upgrades(default: UpgradeRule, *exceptions: tuple[UpgradeRule, str]) -> Upgrades:
    """Rules of a section.

    Args:
        default: of keys that no exception names.
        exceptions: a rule and the names of its keys, separated by spaces.
    """
    return Upgrades(default, {name: rule for rule, names in exceptions for name in names.split()})


OF_SIMULATED_MEMORY = ("model.path", "engine.block_tokens", "simulation.kv_shrink")
"""Keys that also restart memory servers if KV is only accounted and not stored."""
