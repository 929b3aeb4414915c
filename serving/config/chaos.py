"""`[chaos]`: whether replicas may inject faults for `cloudmatrix chaos`."""

from dataclasses import dataclass

from serving.config.key import key


@dataclass(frozen=True, slots=True)
class ChaosConfig:
    """Faults that replicas inject into themselves for a test. Kills and freezes work without it: they are applied
    from outside.
    """

    enabled: bool = key(
        "replicas look for faults that `cloudmatrix chaos` asks for (slow links, full disks, flipped bits); the file "
        "with them is the same user's, on the same machine",
        default=False,
    )
    least_step_s: float = key(
        "with `enabled`: an engine's step takes at least so long, so that answers of a small model last long enough "
        "to be hit [s]",
        default=0.0,
        low=0.0,
        high=10.0,
    )
