"""Ledger of expert slots: what lies in each, what is being loaded, and which map is in use.

A map that would send tokens to a slot without the right weights is refused here, before anything moves. A slot whose
load has begun counts as unusable until the rank says how it ended, however late.
"""

import msgspec

from serving.errors import LedgerError
from serving.experts.core.expert_map import ExpertMap, ExpertSlot, LayerMap, Placement
from serving.experts.core.moves import Slots, slots_of


class SlotLedger:
    """Slots of a group.

    Args:
        first: the map to begin with; its slots hold what it says.
    """

    def __init__(self, first: ExpertMap) -> None:
        first.check()
        self.map = first
        self._issued = first.version
        self._holds = [slots_of(first.placement(layer)) for layer in range(len(first.layers))]
        self._loading: list[set[ExpertSlot]] = [set() for _ in first.layers]
        self._claimed = False
        self.line_free_at = 0.0
        """When the byte rate allows the next fetch, whoever asks [s]: kept here, since movers follow each other."""

    def usable(self, layer: int) -> Slots:
        """Slots of a layer that may be used, with what they hold; those that are being loaded are left out."""
        return {at: held for at, held in self._holds[layer].items() if at not in self._loading[layer]}

    def contents(self, layer: int, without: frozenset[ExpertSlot] = frozenset()) -> Placement:
        """Placement of what lies in a layer for certain.

        Args:
            without: slots to count as empty.
        """
        found: list[list[int | None]] = [[None] * slots for slots in self.map.slots]
        for at, held in self.usable(layer).items():
            if at not in without:
                found[at.rank][at.slot] = held
        return tuple(map(tuple, found))

    def claim(self) -> None:
        """Take the right to change the map; only one mover at a time may have it.

        Raises: LedgerError.
        """
        if self._claimed:
            raise LedgerError("experts are being moved; wait until that has ended")
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
        """A slot is overwritten from now on.

        Raises: LedgerError if the map in use sends tokens there, or it is being loaded.
        """
        if any(home.at == at for homes in self.map.layers[layer].homes for home in homes):
            raise LedgerError(f"layer {layer}, {at}: in use by map {self.map.version}")
        if at not in self._holds[layer] or at in self._loading[layer]:
            raise LedgerError(f"layer {layer}, {at}: not there, or being loaded")
        self._loading[layer].add(at)
        self._holds[layer][at] = None

    def loaded(self, layer: int, at: ExpertSlot, expert: int | None) -> None:
        """A load has ended; None = it failed and the slot is empty. Of a rank that is gone, nothing is kept."""
        if at in self._loading[layer]:
            self._loading[layer].remove(at)
            self._holds[layer][at] = expert

    def switch(self, new: ExpertMap, *, may_mask: bool = False) -> None:
        """All ranks use a new map.

        Args:
            may_mask: experts may be masked that were not.
        Raises: LedgerError if it is bad, no newer, masks an expert, or names a slot that does not hold the expert.
        """
        new.check()
        if not may_mask and any(one.masked - now.masked for one, now in zip(new.layers, self.map.layers, strict=True)):
            raise LedgerError(f"map {new.version} masks experts that have homes")
        if new.version <= self.map.version:
            raise LedgerError(f"map {new.version} is no newer than {self.map.version}")
        for layer, one in enumerate(new.layers):
            usable = self.usable(layer)
            for expert, homes in enumerate(one.homes):
                for home in homes:
                    if usable.get(home.at) != expert:
                        raise LedgerError(f"map {new.version}, layer {layer}: {home.at} does not hold expert {expert}")
        self.map = new
        self._issued = max(self._issued, new.version)

    def resize(self, slots: tuple[int, ...]) -> None:
        """Change the room of ranks: new ones are empty, what lay on those without slots is gone.

        The map in use may name slots that are gone until the next switch; nobody computes meanwhile.
        """
        self.map = msgspec.structs.replace(self.map, slots=slots)
        for layer, holds in enumerate(self._holds):
            every = [ExpertSlot(rank, slot) for rank, count in enumerate(slots) for slot in range(count)]
            self._holds[layer] = {at: holds.get(at) for at in every}
            self._loading[layer] &= set(every)

    def retire(self, layer: int, slots: frozenset[ExpertSlot]) -> None:
        """Take slots out of the map in use while nobody computes by it; the next switch brings a good one."""
        one = self.map.layers[layer]
        homes = tuple(tuple(home for home in own if home.at not in slots) for own in one.homes)
        layers = (*self.map.layers[:layer], LayerMap(homes, one.masked), *self.map.layers[layer + 1 :])
        self.map = msgspec.structs.replace(self.map, layers=layers)

    def check(self) -> None:
        """Prove that the map in use is good and its slots hold what it says.

        Raises: LedgerError.
        """
        self.map.check()
        for layer, one in enumerate(self.map.layers):
            usable = self.usable(layer)
            if any(usable.get(home.at) != expert for expert, homes in enumerate(one.homes) for home in homes):
                raise LedgerError(f"layer {layer}: a slot does not hold what map {self.map.version} says")
