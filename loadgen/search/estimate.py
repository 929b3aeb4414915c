"""Number of requests needed for a reliable share."""

import math

from loadgen.metrics.intervals import Z95


def least_requests(target: float, z: float = Z95) -> int:
    """Fewest requests that, all being good, show that the target holds: where Wilson's lower bound reaches it.

    The bound of n good ones out of n is n / (n + z²). A target of 1 can never be shown; 1 is returned for it.
    """
    if target >= 1.0:
        return 1
    return max(1, math.ceil(z * z * target / (1 - target) - 1e-9))
