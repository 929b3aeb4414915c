"""How sure a share of good requests is, and how many requests it takes to be sure."""

import math

Z95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""


def wilson(good: int, counted: int, z: float = Z95) -> tuple[float, float]:
    """Wilson score interval of a share; (0, 1) if nothing was counted.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    if counted <= 0:
        return 0.0, 1.0
    share = good / counted
    scale = 1 + z * z / counted
    middle = (share + z * z / (2 * counted)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / counted + z * z / (4 * counted * counted))
    low = 0.0 if good == 0 else max(0.0, middle - half)
    return low, (1.0 if good == counted else min(1.0, middle + half))


def least_requests(target: float, z: float = Z95) -> int:
    """Fewest requests that, all being good, show that the target holds: where Wilson's lower bound reaches it.

    The bound of n good ones out of n is n / (n + z²). A target of 1 can never be shown; 1 is returned for it.
    """
    if target >= 1.0:
        return 1
    return max(1, math.ceil(z * z * target / (1 - target) - 1e-9))
