"""Ledger of expert slots: contents of each, loads in progress, and the map in use.

The ledger refuses a map that would send tokens to a slot without the right weights, before anything moves. A slot
counts as unusable from the start of a load until the rank reports its result.

After its own slots a rank may have a reserve, which takes no memory: the map of a regrouping borrows experts there that
are in no own slot. A mover's maps name a borrowed expert only while no own slot holds it.
"""

from collections.abc import Mapping

import msgspec

from serving.errors import LedgerError
from serving.group.core.moves import Slots, slots_of
from serving.values.expert_map import ExpertMap, ExpertSlot, LayerMap, Placement
from serving.values.expert_moves import Held


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
