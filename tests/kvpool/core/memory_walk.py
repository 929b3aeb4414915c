"""Random moves of the machine of `memory_machine.py`."""

from collections.abc import Callable
from random import Random

from serving.kvpool.core.entry import Kind
from tests.kvpool.core.ledger_driver import PAGE
from tests.kvpool.core.memory_machine import SPACES, MemoryMachine

OFTEN = {"store": 12, "lookup": 10, "disk": 12, "promote": 6, "release": 6, "wait": 3, "reserve": 3, "commit": 4}
RARELY = {"client_gone": 0.3, "delete_namespace": 0.3, "restart": 0.3, "quota": 0.3}


def new_machine(chance: Random) -> MemoryMachine:
    """A server of some size with some settings."""
    machine = MemoryMachine()
    machine.build(
        slabs=chance.randint(1, 6),
        ssd_pages=chance.choice([0, 4, 40, 40, 400]),
        write_through=chance.random() < 0.3,
        eviction=chance.choice(["lru", "lfu", "fifo", "cost"]),
        water=chance.choice([(1.0, 1.0), (0.8, 0.4), (0.5, 0.5)]),
        max_spills=chance.randint(1, 3),
    )
    return machine


def moves_of(machine: MemoryMachine, chance: Random) -> dict[str, Callable[[], object]]:
    """The machine's rules with random arguments. Each walk has its own few sizes."""
    sizes = chance.sample([1, PAGE, PAGE + 1, 3 * PAGE, 5 * PAGE, 9 * PAGE], chance.randint(1, 6))

    def some(count: int) -> list[int]:
        return [chance.randrange(100) for _ in range(chance.randint(1, count))]

    def items() -> list[tuple[int, int]]:
        return [(chance.randrange(10), chance.choice(sizes)) for _ in range(chance.randint(1, 6))]

    def kind() -> Kind:
        return Kind.MODEL if chance.random() < 0.1 else Kind.CONTEXT

    return {
        "store": lambda: machine.store(chance.choice(SPACES), items(), chance.randint(1, 3), kind()),
        "reserve": lambda: machine.reserve(chance.choice(SPACES), items(), chance.randint(1, 3), kind()),
        "commit": lambda: machine.writing and machine.commit(chance.randrange(100), chance.random() < 0.1),
        "abort": lambda: machine.writing and machine.abort(chance.randrange(100)),
        "lookup": lambda: machine.lookup(some(5), chance.randint(1, 3), chance.choice([None, 1.0, 20.0])),
        "promote": lambda: machine.leases and machine.promote(some(3)),
        "release": lambda: machine.leases and machine.release(chance.randrange(100)),
        "hold": lambda: machine.leases and machine.hold(chance.randrange(100), chance.randint(0, 1)),
        "unhold": lambda: machine.holds and machine.unhold(chance.randrange(100)),
        "client_gone": lambda: machine.client_gone(chance.randint(1, 3), 0),
        "distrust": lambda: machine.distrust(chance.randrange(100), chance.random() < 0.5),
        "remove": lambda: machine.remove(chance.randrange(100)),
        "wait": lambda: machine.wait(chance.choice([0.0, 0.5, 3.0, 12.0]), chance.random() < 0.7),
        "disk": lambda: machine.disk(chance.randrange(100), chance.random() < 0.9),
        "quota": lambda: machine.quota(chance.choice(["red", "blue"]), chance.choice([0, 0, 1, 8, 30])),
        "delete_namespace": lambda: machine.delete_namespace(chance.choice(["red", "blue"]), 0),
        "everything_frees_up": lambda: machine.everything_frees_up(chance.choice(sizes), 0),
        "restart": lambda: machine.settings.ssd_bytes and machine.restart(chance.random() < 0.5, 0),
    }
