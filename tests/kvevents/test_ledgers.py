"""An index built from events equals the ledgers, after random operations with lost batches, replays and kills."""

from collections.abc import Iterator
from random import Random

import pytest

from serving.ids import BlockHash, SequenceId
from serving.instance.core.block_pool import BlockPool
from serving.instance.core.sequence import LiveSequence
from serving.instance.core.sequence_blocks import SequenceBlocks
from serving.instance.core.windowed_blocks import WindowedBlocks
from serving.kvevents.core.event_form import EventForm
from serving.kvevents.core.event_log import Batch, KvEventLog
from serving.kvpool.core.entry import Kind
from serving.values.kv_changes import CPU, GPU, STORAGE, BlocksStored, KvChange, KvChanges
from serving.values.layer_split import LayerSplit
from serving.values.prefix_hash import prefix_hashes
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.kvevents.subscriber import SubscriberIndex
from tests.kvpool.core.memory_machine import MemoryMachine
from tests.kvpool.core.memory_walk import OFTEN, RARELY, moves_of, new_machine

FORM = EventForm("map", "bytes", 4)


class Line:
    """A publisher without sockets, and a subscriber that loses some of its batches."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.index = SubscriberIndex(lambda start: [*self.log.replay(start, 0.0)])
        self.starts = 0
        self.begin()

    def begin(self) -> None:
        """A new process at the same address; its numbers are larger than those of the one before."""
        self.starts += 1
        self.changes = KvChanges(("red", "blue", "default"), 10_000)
        self.log = KvEventLog(FORM, self.chance.choice([1, 4, 1000]), self.starts << 32)
        self.send(self.log.open(0.0))

    def carry(self) -> None:
        """Publish what waits; sometimes nobody listens."""
        changes = self.changes.take(10_000)
        if self.chance.random() < 0.1:
            self.log.pass_over(changes)
        else:
            self.send(self.log.publish(changes, 0.0))

    def catch_up(self) -> None:
        """After this the subscriber has missed nothing: an empty batch shows it what it lacks."""
        self.carry()
        self.send(self.log.greet(0.0), lossy=False)

    def send(self, batches: list[Batch], *, lossy: bool = True) -> None:
        for batch in batches:
            if not lossy or self.chance.random() < 0.8:
                self.index.hear(*batch)


class Watched(MemoryMachine):
    """The memory server's machine, of which every start is a new publisher."""

    def watch(self, line: Line) -> None:
        self.line = line
        self.attach()

    def start(self, driver: object) -> None:
        super().start(driver)  # type: ignore[arg-type]
        if hasattr(self, "line"):
            self.line.begin()
            self.attach()

    def attach(self) -> None:
        inventory = self.manager._inventory
        inventory.changes = self.line.changes
        for entry in inventory.by_version.values():  # restored before; a live server has its queue from the beginning
            if entry.shown:
                inventory._tell_all(entry, gone=False)

    def compare(self) -> None:
        self.line.catch_up()
        entries = [one for one in self.manager.entries() if one.kind is Kind.CONTEXT]
        assert self.line.index.media[CPU] == {one.hash for one in entries if one.in_dram}
        assert self.line.index.media[STORAGE] == {one.hash for one in entries if one.on_ssd}


def walk_pool(seed: int, steps: int) -> Line:
    chance = Random(seed)
    machine = Watched()
    machine.__dict__.update(new_machine(chance).__dict__)
    machine.watch(Line(chance))
    moves = moves_of(machine, chance)
    weights = [{**OFTEN, **RARELY}.get(move, 1) for move in moves]
    for number, move in enumerate(chance.choices(list(moves), weights, k=steps)):
        moves[move]()
        if chance.random() < 0.3:
            machine.line.carry()
        if number % 50 == 0:
            machine.compare()
    machine.compare()
    return machine.line


def test_the_index_equals_a_memory_servers_list() -> None:
    lines = [walk_pool(seed, 1250) for seed in range(8)]
    assert sum(line.index.gaps for line in lines) > 100
    assert sum(line.starts for line in lines) > 16


@pytest.mark.nightly
def test_the_index_equals_the_list_after_a_hundred_thousand_operations() -> None:
    for seed in range(100, 180):
        walk_pool(seed, 1250)


def walk_instance(seed: int, steps: int) -> tuple[Line, int]:
    chance = Random(seed)
    line, evictions = Line(chance), 0
    for _ in range(max(1, steps // 5000)):  # each a life of an instance, ended by a kill
        pool = BlockPool(chance.choice([6, 20, 60]))
        pool.changes = line.changes
        _live(chance, pool, line, min(steps, 5000))
        evictions += pool.evictions
        line.begin()
        line.catch_up()
        assert not line.index.media[GPU]
    return line, evictions


def _live(chance: Random, pool: BlockPool, line: Line, steps: int) -> None:
    blocks = SequenceBlocks(pool, 4, prefix_reuse=True, cache_decoded=True)
    running: list[LiveSequence] = []
    for number in range(steps):
        if running and chance.random() < 0.5:
            sequence = chance.choice(running)
            if chance.random() < 0.5 and blocks.grow(sequence, len(sequence.tokens) + 1):
                sequence.output.append(chance.randrange(2))
            sequence.num_computed = max(sequence.num_computed, len(sequence.tokens) - chance.randrange(3))
            blocks.publish(sequence)
            if chance.random() < 0.4:
                if chance.random() < 0.05:
                    blocks.distrust(sequence)
                blocks.free(sequence)
                running.remove(sequence)
        else:
            spec = SequenceSpec(SequenceId(str(number)), tuple(_prompt(chance)), SamplingParams())
            sequence = LiveSequence(spec, (0.0, 0), 0.0)
            if blocks.reserve(sequence, 0):
                running.append(sequence)
        if chance.random() < 0.3:
            line.carry()
        if number % 50 == 0:
            line.catch_up()
            assert line.index.media[GPU] == set(pool._block_of)
            _check_tokens(line.index)


def _prompt(chance: Random) -> Iterator[int]:
    return (chance.randrange(2) if place % 4 == 0 else place for place in range(chance.randrange(1, 24)))


def _check_tokens(index: SubscriberIndex) -> None:
    """Every block's tokens are those of its hash, as far as its chain is known."""
    for block in index.media[GPU]:
        chain: list[int] = []
        at: BlockHash | None = block
        while at is not None and at in index.tokens:
            parent, tokens = index.tokens[at]
            chain = [*tokens, *chain]
            at = parent
        if at is None:
            assert prefix_hashes(chain, 4)[-1] == block


def test_the_index_equals_an_instances_prefix_cache() -> None:
    line, evictions = walk_instance(1, 20_000)
    assert line.index.gaps > 50
    assert evictions > 1000


def _noted(blocks: SequenceBlocks, **spec: object) -> list[KvChange]:
    changes = blocks.pool.changes = KvChanges(("default",), 100)
    named = SequenceSpec(SequenceId("a"), tuple(range(9)), SamplingParams(), **spec)  # type: ignore[arg-type]
    sequence = LiveSequence(named, (0.0, 0), 0.0)
    assert blocks.reserve(sequence, 0)
    sequence.num_computed = 9
    blocks.publish(sequence)
    return changes.take(100)


def test_only_chosen_tenants_and_no_salted_requests_are_published() -> None:
    def blocks() -> SequenceBlocks:
        return SequenceBlocks(BlockPool(9), 4, prefix_reuse=True, cache_decoded=True)

    hashes = [*prefix_hashes(range(9), 4)]
    assert _noted(blocks()) == [BlocksStored(GPU, hashes, None, tuple(range(8)))]
    assert _noted(blocks(), namespace="acme") == []
    assert _noted(blocks(), salt=b"x", salted=True) == []


def test_layers_with_a_window_are_a_group_of_their_own() -> None:
    split = LayerSplit(full=1, sliding=1, window=4)
    blocks = WindowedBlocks(
        BlockPool(20), 4, split, prefix_reuse=True, cache_decoded=True, step_tokens=100, fetches=False
    )
    full, sliding = _noted(blocks)
    assert (full.group, sliding.group) == (0, 1)  # type: ignore[union-attr]
    keys = [split.keys(one) for one in prefix_hashes(range(9), 4)]
    assert [[*full.hashes], [*sliding.hashes]] == [[one[0] for one in keys], [one[1] for one in keys]]
    assert blocks.known_rows(prefix_hashes(range(9), 4)) == 2
    assert blocks.known_rows(prefix_hashes([*range(4), 9, 9, 9, 9], 4)) == 1


@pytest.mark.nightly
def test_the_index_equals_the_prefix_cache_after_a_hundred_thousand_operations() -> None:
    walk_instance(2, 100_000)
