"""Independent random streams from one seed, named by what they are for.

Arrival times, contents and behaviours each have their own stream, so changing one (such as the share of clients that
disconnect) leaves the others unchanged. Names are hashed with BLAKE2, never with Python's `hash()`, which differs from
process to process.
"""

from hashlib import blake2b

import numpy as np


def stream(seed: int, *path: str | int) -> np.random.Generator:
    """The generator for one purpose of a run.

    Args:
        seed: of the run, >= 0. path: names of the purpose, for instance ("times",) or ("client", 3).
    Returns: equal for equal arguments, in every process; statistically independent of every other path's.
    """
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=tuple(_key(part) for part in path)))


def _key(part: str | int) -> int:
    """64 bits that name one part; a number and its text are different names."""
    text = f"{type(part).__name__}:{part}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
