"""The best static split of a load, by simulation: the fewest NPUs that reach the required attainment from the first to
the
last request. Unlike an autoscaler it knows the whole load in advance.
"""

from collections.abc import Callable

from tests.benchmarks.autoscaling.trial import Split, Trial

_GENEROUS = 2
"""Prefill instances more than the guess, while the decode pool is searched."""

Probe = Callable[[Split], Trial]


def best_split(probe: Probe, first: Split, sizes: Split, npus: int, needed: float) -> tuple[Trial | None, int]:
    """Search decode next to a generous prefill pool, then prefill next to that decode pool.

    More instances never attain less (a test of the simulator), so each pool's minimum can be found separately.

    Args:
        first: an estimate. sizes: NPUs of one instance. npus: available ones. needed: attainment.
    Returns: the trial, None if no split that fits reaches it; and the number of simulations.
    """
    seen: dict[Split, Trial] = {}

    def holds(split: Split) -> bool:
        if split not in seen:
            seen[split] = probe(split)
        return not seen[split].given_up and seen[split].attainment >= needed

    def room(decode: int) -> int:
        return (npus - decode * sizes.decode) // sizes.prefill

    generous = first.prefill + _GENEROUS
    most = (npus - sizes.prefill) // sizes.decode
    decode = _fewest(lambda count: holds(Split(min(generous, room(count)), count)), first.decode, most)
    if decode is None:
        return None, len(seen)
    prefill = _fewest(lambda count: holds(Split(count, decode)), first.prefill, min(generous, room(decode)))
    return (None if prefill is None else seen[Split(prefill, decode)]), len(seen)


def _fewest(holds: Callable[[int], bool], guess: int, most: int) -> int | None:
    """The minimum that suffices, searched step by step from an estimate: a good estimate costs two trials."""
    count = min(max(1, guess), most)
    if holds(count):
        while count > 1 and holds(count - 1):
            count -= 1
        return count
    while count < most:
        count += 1
        if holds(count):
            return count
    return None
