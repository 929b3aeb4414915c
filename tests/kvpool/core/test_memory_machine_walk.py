"""The machine of `test_memory_machine.py` on long random walks: old and crowded states that short runs miss."""

from random import Random

from serving.kvpool.core.entry import EntryTier
from tests.kvpool.core.memory_machine import MemoryMachine
from tests.kvpool.core.memory_walk import OFTEN, RARELY, moves_of, new_machine


def random_walk(seed: int, steps: int) -> MemoryMachine:
    """Walk randomly, and check all invariants after each step."""
    chance = Random(seed)
    machine = new_machine(chance)
    moves = moves_of(machine, chance)
    weights = [{**OFTEN, **RARELY}.get(move, 1) for move in moves]
    for move in chance.choices(list(moves), weights, k=steps):
        moves[move]()
        machine.check_all()
    return machine


def test_long_random_walks() -> None:
    seen: dict[str, int] = {}
    for seed in range(8):
        machine = random_walk(seed, 500)
        for tier, count in machine.seen.items():
            seen[tier] = seen.get(tier, 0) + count
    # Otherwise the walk covered nothing and proved nothing.
    assert seen[EntryTier.DRAM.value] > 200
    assert seen[EntryTier.SSD.value] > 100
