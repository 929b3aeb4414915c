"""Ledger of expert slots: contents of each, loads in progress, and the map in use.

The ledger refuses a map that would send tokens to a slot without the right weights, before anything moves. A slot
counts as unusable from the start of a load until the rank reports its result.

After its own slots a rank may have a reserve, which takes no memory: the map of a regrouping borrows experts there that
are in no own slot. A mover's maps name a borrowed expert only while no own slot holds it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from serving.errors import LedgerError
from serving.values.expert_map import ExpertMap, ExpertMove, ExpertSlot, Held, LayerMap, Placement

# Fewest moves that turn one placement of a layer into another while tokens flow, in rounds.
#
# A round overwrites several slots at once. No expert loses its last home: a slot whose expert has no other home waits
# until it has one, and a cycle of such slots is broken by way of a spare slot.

Slots = dict[ExpertSlot, int | None]


@dataclass(frozen=True, slots=True)
class MoveRound:
    """Concurrent moves into different slots of one layer; without moves only the weights change."""

    layer: int
    moves: tuple[ExpertMove, ...]


def slots_of(placement: Placement) -> Slots:
    """A placement by slot."""
    return {ExpertSlot(rank, slot): expert for rank, held in enumerate(placement) for slot, expert in enumerate(held)}


def align(current: Slots, target: Placement, kinds: Sequence[int]) -> Slots:
    """The target by slot, arranged so that as many experts as possible stay in place.

    Ranks of one kind may swap their parts; slots of a rank hold experts in any order. Slots that the target does not
    need keep their experts.

    Args:
        current: slots that may be used, with what they hold.
        kinds: [rank]; equal where ranks have the same number of usable slots and the same node.
    """
    held: list[set[int]] = [set() for _ in target]
    for at, expert in current.items():
        if expert is not None:
            held[at.rank].add(expert)
    parts = [{expert for expert in part if expert is not None} for part in target]
    chosen = _parts_of(held, parts, kinds)
    found = dict(current)
    for rank in range(len(target)):
        wanted = parts[chosen[rank]]
        free = sorted(
            (at for at, expert in current.items() if at.rank == rank and expert not in wanted),
            key=lambda at: (current[at] is not None, at),
        )
        for at, expert in zip(free, sorted(wanted - held[rank]), strict=False):
            found[at] = expert
    return found


def _parts_of(held: Sequence[set[int]], parts: Sequence[set[int]], kinds: Sequence[int]) -> dict[int, int]:
    """Part of each rank: pairs with the most experts in common come first, then a rank's own part, then the first."""
    takers: dict[int, list[int]] = {}
    for part, wanted in enumerate(parts):
        for expert in wanted:
            takers.setdefault(expert, []).append(part)
    common = Counter((rank, part) for rank, own in enumerate(held) for one in own for part in takers.get(one, ()))
    pairs = sorted((-n, rank != part, rank, part) for (rank, part), n in common.items() if kinds[rank] == kinds[part])
    chosen, given = dict[int, int](), set[int]()
    for rank, part in (*((pair[2], pair[3]) for pair in pairs), *((rank, rank) for rank in range(len(parts)))):
        if rank not in chosen and part not in given:
            chosen[rank] = part
            given.add(part)
    for rank in range(len(parts)):
        if rank not in chosen:
            chosen[rank] = next(one for one in range(len(parts)) if one not in given and kinds[one] == kinds[rank])
            given.add(chosen[rank])
    return chosen


def move_rounds(layer: int, current: Slots, target: Slots) -> tuple[MoveRound, ...] | None:
    """Rounds of moves from one placement to the other.

    Returns: None if there is a cycle without a usable spare slot: the layer cannot change while it serves.
    """
    now, rounds, seen = dict(current), list[MoveRound](), set[tuple[ExpertSlot | None, tuple[int | None, ...]]]()
    freed: ExpertSlot | None = None
    while pending := [at for at in sorted(target) if target[at] is not None and target[at] != now[at]]:
        state = (freed, tuple(now[at] for at in sorted(now)))
        if state in seen:
            return None  # what was lent as a spare slot is wanted back, and round it goes
        seen.add(state)
        # A slot whose expert was lent another home goes first: else that home may be taken back before it has served.
        chosen = _overwritable(now, sorted(pending, key=lambda at: (at != freed, at)))
        wanted = {at: target[at] for at in chosen}
        if not chosen:
            spare = _spare(now, pending)
            if spare is None:
                return None
            wanted, freed = {spare: now[pending[0]]}, pending[0]
        rounds.append(MoveRound(layer, _moves(layer, now, wanted)))
        now.update(wanted)
    return tuple(rounds)


def _overwritable(now: Slots, pending: Sequence[ExpertSlot]) -> list[ExpertSlot]:
    """Pending slots that may be overwritten together: every expert keeps a home."""
    homes = Counter(now.values())
    chosen = []
    for at in pending:
        expert = now[at]
        if expert is None or homes[expert] > 1:
            homes[expert] -= 1
            chosen.append(at)
    return chosen


def _spare(now: Slots, pending: Sequence[ExpertSlot]) -> ExpertSlot | None:
    """A slot that is empty or holds a surplus copy, preferably on the rank of the expert to move."""
    homes = Counter(now.values())
    spare = [at for at, held in now.items() if held is None or homes[held] > 1]
    return min(spare, key=lambda at: (now[at] is not None, at.rank != pending[0].rank, at), default=None)


def _moves(layer: int, now: Slots, wanted: Slots) -> tuple[ExpertMove, ...]:
    """A move for each slot, from the rank itself if it can, else from the rank that sends least in this round."""
    sends, found = Counter[int](), []
    for at, expert in wanted.items():
        assert expert is not None
        sources = [source for source, held in now.items() if held == expert]
        source = min(sources, key=lambda one: (one.rank != at.rank, sends[one.rank], one), default=None)
        if source is not None and source.rank != at.rank:
            sends[source.rank] += 1
        found.append(ExpertMove(layer, expert, at, source))
    return tuple(found)


# Ledger of expert slots: contents of each, loads in progress, and the map in use.


class SlotLedger:
    """Slots of a group.

    Args:
        first: initial map, which matches the contents of the slots.
        reserve: slots of a layer at each rank, after its own; the map counts them.
    """

    def __init__(self, first: ExpertMap, reserve: int = 0) -> None:
        first.check()
        self.map = first
        self._reserve = reserve
        self._issued = first.version
        every = range(len(first.layers))
        self._holds = [
            {at: held for at, held in slots_of(first.placement(layer)).items() if self._is_own(at)} for layer in every
        ]
        self._loading: list[set[ExpertSlot]] = [set() for _ in every]
        self._claimed = False
        self.line_free_at = 0.0
        """When the byte rate allows the next fetch [s]. Kept in the ledger because it spans consecutive movers."""

    def usable(self, layer: int) -> Slots:
        """Usable own slots of a layer and their contents, without slots that are being loaded."""
        return {at: held for at, held in self._holds[layer].items() if at not in self._loading[layer]}

    def borrowed(self, layer: int) -> dict[int, ExpertSlot]:
        """Experts of a layer for which the map in use names slots of the reserve, by expert."""
        homes = self.map.layers[layer].homes
        return {expert: home.at for expert, own in enumerate(homes) for home in own if self._is_reserve(home.at)}

    def held(self, rank: int) -> Held:
        """Contents of a rank's own slots that are certain."""
        found = []
        for layer in range(len(self._holds)):
            usable = self.usable(layer)
            slots = range(self.map.slots[rank] - self._reserve)
            found.append(tuple(usable.get(ExpertSlot(rank, slot)) for slot in slots))
        return tuple(found)

    def contents(self, layer: int, without: frozenset[ExpertSlot] = frozenset()) -> Placement:
        """Placement of the known contents of a layer; includes borrowed experts that are in no own slot.

        Args:
            without: slots to count as empty.
        """
        found: list[list[int | None]] = [[None] * slots for slots in self.map.slots]
        there = set[int | None]()
        for at, held in self.usable(layer).items():
            if at not in without:
                found[at.rank][at.slot] = held
                there.add(held)
        for expert, at in self.borrowed(layer).items():
            if expert not in there:
                found[at.rank][at.slot] = expert
        return tuple(map(tuple, found))

    def claim(self) -> None:
        """Take the right to change the map, which one mover has at a time.

        Raises: LedgerError.
        """
        if self._claimed:
            raise LedgerError("experts are being moved; wait until the move has finished")
        self._claimed = True

    def release(self) -> None:
        """Give the right back."""
        self._claimed = False

    @property
    def busy(self) -> bool:
        """True while a mover has the right to change the map."""
        return self._claimed

    def next_version(self) -> int:
        """A version that no map has had."""
        self._issued += 1
        return self._issued

    def begin(self, layer: int, at: ExpertSlot) -> None:
        """Mark a slot as being overwritten.

        Raises: LedgerError if the map in use sends tokens to it, or it is being loaded.
        """
        if any(home.at == at for homes in self.map.layers[layer].homes for home in homes):
            raise LedgerError(f"layer {layer}, {at}: in use by map {self.map.version}")
        if at not in self._holds[layer] or at in self._loading[layer]:
            raise LedgerError(f"layer {layer}, {at}: not there, or being loaded")
        self._loading[layer].add(at)
        self._holds[layer][at] = None

    def loaded(self, layer: int, at: ExpertSlot, expert: int | None) -> None:
        """Record the result of a load; None = it failed and the slot is empty. Ranks that have left are ignored."""
        if at in self._loading[layer]:
            self._loading[layer].remove(at)
            self._holds[layer][at] = expert

    def switch(self, new: ExpertMap) -> None:
        """Record that all ranks use a new map.

        Raises: LedgerError if it is invalid, not newer, masks an expert, or names a slot that does not hold the expert.
        """
        new.check()
        if any(one.masked - now.masked for one, now in zip(new.layers, self.map.layers, strict=True)):
            raise LedgerError(f"map {new.version} masks experts that have homes")
        if new.version <= self.map.version:
            raise LedgerError(f"map {new.version} is no newer than {self.map.version}")
        self._check_holds(new, self.map)
        self.map = new
        self._issued = max(self._issued, new.version)

    def resize(self, slots: tuple[int, ...]) -> None:
        """Change the numbers of slots: new slots are empty, removed slots lose their contents.

        The map in use may name removed slots until the next switch; no rank computes until then.

        Args:
            slots: [rank] own slots of a layer.
        """
        counted = tuple(count + self._reserve if count else 0 for count in slots)
        self.map = msgspec.structs.replace(self.map, slots=counted)
        for layer, holds in enumerate(self._holds):
            every = [ExpertSlot(rank, slot) for rank, count in enumerate(slots) for slot in range(count)]
            self._holds[layer] = {at: holds.get(at) for at in every}
            self._loading[layer] &= set(every)

    def regroup(self, new: ExpertMap, newcomers: Mapping[int, Held]) -> None:
        """Change the members, with a map of `regroup_map`.

        Args:
            newcomers: contents of ranks that are new or run in a new process.
        Raises: LedgerError as `switch`, or while a mover has the right to change the map.
        """
        if self._claimed:
            raise LedgerError("experts are being moved: abandon the move first")
        own = tuple(max(0, count - self._reserve) for count in new.slots)
        self.resize(own)
        for rank, held in newcomers.items():
            for layer, row in enumerate(held):
                for slot, expert in enumerate(row):
                    self._holds[layer][ExpertSlot(rank, slot)] = expert
                    self._loading[layer].discard(ExpertSlot(rank, slot))
        new.check()
        self._check_holds(new, new)
        self.map = new
        self._issued = max(self._issued, new.version)

    def stopped(self, rank: int, held: Held) -> None:
        """Record the contents of a rank that has ended its moves."""
        for layer, loading in enumerate(self._loading):
            for at in [one for one in loading if one.rank == rank]:
                loading.remove(at)
                self._holds[layer][at] = held[layer][at.slot]

    def check(self) -> None:
        """Check that the map in use is valid and matches the contents of its slots.

        Raises: LedgerError.
        """
        self.map.check()
        self._check_holds(self.map, self.map)

    def _is_own(self, at: ExpertSlot) -> bool:
        return at.slot < self.map.slots[at.rank] - self._reserve

    def _is_reserve(self, at: ExpertSlot) -> bool:
        slots = self.map.slots[at.rank] if at.rank < len(self.map.slots) else 0
        return slots - self._reserve <= at.slot < slots

    def _check_holds(self, new: ExpertMap, lender: ExpertMap) -> None:
        """Check that every slot of a map holds its expert; a reserve slot does if the lender's map names it too."""
        for layer, one in enumerate(new.layers):
            usable = self.usable(layer)
            for expert, homes in enumerate(one.homes):
                for home in homes:
                    lent = self._is_reserve(home.at) and home.at in _places(lender.layers[layer], expert)
                    if not lent and usable.get(home.at) != expert:
                        raise LedgerError(f"map {new.version}, layer {layer}: {home.at} does not hold expert {expert}")


def _places(layer: LayerMap, expert: int) -> set[ExpertSlot]:
    return {home.at for home in layer.homes[expert]}
