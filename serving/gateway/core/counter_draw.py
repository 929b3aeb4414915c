"""Draws without a generator: the n-th draw is a function of seed and n, so that a replay draws the same."""

_MASK = (1 << 64) - 1


def draw(seed: int, counter: int, below: int) -> int:
    """The `counter`-th draw of `seed`.

    Args:
        below: number of outcomes; at least one.
    Returns: 0 ... `below` - 1, uniformly distributed.
    Source: the finaliser of splitmix64.
    """
    value = (seed * 0x9E3779B97F4A7C15 + counter * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((value ^ (value >> 31)) * below) >> 64


def two_of(count: int, seed: int, counter: int) -> tuple[int, int]:
    """Two different indices below `count`, or the same index twice if there is only one."""
    first = draw(seed, 2 * counter, count)
    if count < 2:
        return first, first
    second = draw(seed, 2 * counter + 1, count - 1)
    return first, second + (second >= first)
