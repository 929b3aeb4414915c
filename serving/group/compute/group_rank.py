"""Membership of a process in its group: its window, those of its peers, the epoch, its experts. Imports no torch.

    role         has             maps windows of         waits for hellos of
    attention    no slots        expert ranks            expert ranks
    experts      slots           attention ranks         none
    both         slots           all                     all

A second order for the same epoch means that ranks without experts have joined or left: ranks without attention admit
or drop them immediately, all other ranks ignore it, and no step is redone.
"""

import dataclasses
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from hardware.errors import HardwareError, SpecError
from hardware.ub.exchange_layout import EPOCH_OFFSET, WindowShape, read_shape
from hardware.ub.segment import UbSegment
from serving.config.cluster import ANY_PORT, PortRange
from serving.config.experts import ExpertsConfig
from serving.errors import EngineError, ExpertError, GroupError, ModelError
from serving.group.compute.carrier import SILENCE_S, Carriers
from serving.group.compute.rank_experts import Answered, RankExperts
from serving.model.native.layout import NativeRole
from serving.model.native.library import instructions
from serving.model.native.rank_group import (
    FIRST_EPOCH,
    GroupPlace,
    RankGroup,
    format_window,
    group_library,
    raise_epoch,
    window_bytes,
)
from serving.model.slots.expert_slots import SlotTable
from serving.model.slots.slot_region import PeerSlots
from serving.sockets.secrets import ClusterSecrets
from serving.values.expert_map import NO_SESSIONS, ExpertFacts, ExpertOrder, SessionTimes
from serving.values.group import RankOffer, RankRole, RegroupOrder
from serving.values.instances import InstancePlace, RankPlace

LAST_EPOCH = (1 << 64) - 1
"""A rank that leaves puts itself out of the group with it, so that no wait of its own holds it up."""


class GroupRank:
    """A `GroupMember`.

    Args:
        place: of a rank.
    """

    def __init__(self, config: ExpertsConfig, place: InstancePlace, experts: RankExperts) -> None:
        assert place.rank is not None
        self._rank: RankPlace = place.rank
        self._config, self._node, self._beside = config, str(place.node), place.beside
        self.experts = experts
        self._group: RankGroup | None = None
        self._own: RankWindow | None = None
        self._peers: dict[int, tuple[RankOffer, memoryview]] = {}
        """By rank: its process, and its window or the mirror of it."""
        self._mapped: dict[int, RankWindow] = {}
        """Windows of peers of this node, by rank."""
        self._carriers: Carriers | None = None
        self._address = ("", 0)
        self._shared: SlotTable | None = None
        self._lock = threading.Lock()
        self.order: RegroupOrder | None = None
        """The last order that was followed: members that compute together, or will from its epoch on."""

    def bind(self, group: RankGroup, max_rows: int = 0, shared: SlotTable | None = None) -> None:
        """Set the engine's side of the group. Effects: makes the rank's window.

        Args:
            max_rows: of the window; 0 = those of the engine's steps.
            shared: shared experts of all layers, of a rank that computes them for others.
        Raises: HardwareError if there is no memory for it.
        """
        self._shared = shared
        group.sends_shared = self._config.shared == "experts" and self._rank.role is not RankRole.BOTH
        shape = group.window_shape(self._rank.most)
        if max_rows:
            shape = dataclasses.replace(shape, max_rows=max_rows)
        role = NativeRole[self._rank.role.name]
        self._own = RankWindow.create(self._beside("window"), shape, self._rank.number, role)
        self._group = group

    def listen(
        self, host: str, secrets: ClusterSecrets, ports: PortRange = ANY_PORT, silence_s: float = SILENCE_S
    ) -> None:
        """See `GroupMember.listen`; `silence_s` as in `Carriers`."""
        assert self._own is not None
        own, me = self._own.memory, (self._rank.number, self._node, os.getpid())
        self._carriers = Carriers(own, self._shape, me, secrets, self._config.deadline_s, silence_s)
        if self.experts.offer:
            self._carriers.slots = PeerSlots.of(self.experts.offer).record
        self._address = self._carriers.start(host, ports)

    @property
    def window_path(self) -> str:
        """Path of the rank's window, for its peers."""
        assert self._own is not None
        return str(self._own.path)

    @property
    def _shape(self) -> WindowShape:
        assert self._own is not None
        return read_shape(self._own.memory)

    def offer(self, layout: str) -> RankOffer:
        """See `GroupMember.offer`. Effects: empties reserve slots that no map names."""
        experts = self.experts
        experts.give_back()
        return RankOffer(
            rank=self._rank.number,
            pid=os.getpid(),
            window_path=self.window_path,
            layout=layout,
            instructions=instructions() or "",
            experts=experts.experts,
            gate=experts.gate,
            expert_bytes=experts.expert_bytes,
            held=experts.held if self._rank.role.has_experts else (),
            slots=experts.offer,
            role=self._rank.role,
            node=self._node,
            carrier=self._address,
            rows=self._shape.max_rows,
        )

    @property
    def version(self) -> int:
        """See `GroupMember.version`."""
        return self.experts.version

    @property
    def using(self) -> int:
        """See `GroupMember.using`."""
        return 0 if self.order is None else self.experts.map_version

    def carry_out(self, orders: Sequence[ExpertOrder], answered: Answered) -> None:
        """See `GroupMember.carry_out`."""
        self.experts.carry_out(orders, answered)

    @property
    def raised(self) -> int:
        """See `GroupMember.raised`."""
        return self._own.epoch if self._own is not None and self.order is not None else 0

    def awaited(self) -> tuple[int, float] | None:
        """See `GroupMember.awaited`."""
        return None if self._group is None else self._group.awaited()

    def sessions(self) -> SessionTimes:
        """See `GroupMember.sessions`."""
        return NO_SESSIONS if self._group is None else self._group.sessions()

    @property
    def unreachable(self) -> tuple[int, ...]:
        """See `GroupMember.unreachable`."""
        return () if self._carriers is None else tuple(self._carriers.lost())

    def begin(self, epoch: int, members: Sequence[int]) -> None:
        """See `GroupMember.begin`."""
        assert self._own is not None
        if epoch > self._own.epoch:
            if self.order is not None and self.order.epoch == epoch:
                members = self.order.members  # some may have joined or left since the epoch was planned
            self._own.raise_epoch(epoch, sum(1 << rank for rank in members))

    def follow(self, order: RegroupOrder) -> None:
        """Compute with these members from the order's epoch on. The first order joins the group.

        Members compute experts that are in no own slot from their reserves, according to the order's map.

        Raises: GroupError if they do not fit.
        """
        try:
            with self._lock:
                if self.order is None:
                    self._join(order)
                elif order.epoch == self.order.epoch:
                    self._change_sources(self.order, order)
                else:
                    self._regroup(order)
                self.order = order
        except (HardwareError, EngineError, ExpertError, ModelError) as error:
            raise GroupError(f"rank {self._rank.number} cannot follow its group: {error}") from error

    def _join(self, order: RegroupOrder) -> None:
        assert self._group is not None
        assert self._own is not None
        windows: list[memoryview | None] = [None] * self._rank.most
        processes = [0] * self._rank.most
        for offer in order.offers:
            self._meet(offer)
        for rank, (offer, window) in self._peers.items():
            windows[rank], processes[rank] = window, self._watched(offer)
        windows[self._rank.number] = self._own.memory
        # A rank without experts may come to an epoch that has begun.
        epoch = FIRST_EPOCH if self._rank.role.has_experts else order.epoch
        self._own.raise_epoch(epoch, sum(1 << rank for rank in order.members))
        place = GroupPlace(
            rank=self._rank.number,
            windows=windows,
            processes=processes,
            slots=self.experts.table,
            expert_map=self.experts.prepare(order.map),
            map_version=order.version,
            cores=len(os.sched_getaffinity(0)),
            deadline_s=self._config.deadline_s,
            shared=self._shared,
            gather_us=self._config.gather_us,
        )
        self._group.join(place)
        self._join_experts(self._group, order)

    def _regroup(self, order: RegroupOrder) -> None:
        assert self._group is not None
        if self._carriers is not None:
            for rank in set(self._carriers.ranks) - set(order.members):  # before the epoch without it begins
                del self._peers[rank]
                self._carriers.part(rank)
        for offer in order.offers:
            if self._meet(offer):
                self._group.set_peer(offer.rank, self._peers[offer.rank][1], self._watched(offer))
        self._group.set_map(order.version, self.experts.prepare(order.map), order.epoch)
        self._join_experts(self._group, order)

    def _change_sources(self, before: RegroupOrder, order: RegroupOrder) -> None:
        assert self._group is not None
        if not self._rank.role.has_attention:
            for rank in set(before.members) - set(order.members):
                if self._carriers is not None:
                    self._carriers.part(rank)  # else it could still post an ask
                self._group.drop(rank)
                self._peers.pop(rank, None)
                self._mapped.pop(rank, None)
            for offer in order.offers:
                if self._meet(offer):
                    self._group.admit(offer.rank, self._peers[offer.rank][1])
        if order.version > self.version:
            self._group.set_map(order.version, self.experts.prepare(order.map), order.epoch)

    def _meet(self, offer: RankOffer) -> bool:
        """Map a peer's window, or create the mirror of a peer on another node.

        Returns: False if neither needs the other, or it is known.
        Raises: GroupError if it is on another node, and this rank or that one does not listen for others.
        """
        known, own = self._peers.get(offer.rank), self._rank.role
        asks = own.has_attention and offer.role.has_experts
        answers = own.has_experts and offer.role.has_attention
        needed = offer.rank != self._rank.number and (asks or answers)
        if not needed or (known is not None and known[0].is_of(offer)):
            return False
        if offer.node == self._node:
            window = RankWindow.attach(offer.window_path)
            self._mapped[offer.rank] = window
            self._peers[offer.rank] = offer, window.memory
            return True
        if self._carriers is None or not offer.carrier[1]:
            raise GroupError(
                f"rank {offer.rank} is on node {offer.node}, and rank {self._rank.number} on {self._node}: one of them "
                "takes no connections from other nodes; set [experts] across_nodes = true for both"
            )
        self._peers[offer.rank] = offer, self._carriers.meet(offer)
        return True

    def _watched(self, offer: RankOffer) -> int:
        """Process to monitor for a peer; 0 if the peer is on another node."""
        return offer.pid if offer.node == self._node else 0

    def _join_experts(self, group: RankGroup, order: RegroupOrder) -> None:
        """Let the experts know the members from whose slots they can be copied."""
        near = [one for one in order.offers if one.node == self._node]
        far = [one for one in order.offers if one.node != self._node and one.slots]
        readable = {} if self._carriers is None else {one.rank: self._carriers.slots_of(one) for one in far}
        self.experts.join(group, near, readable)

    def facts(self) -> ExpertFacts | None:
        """Destinations of rows and contents of slots; None before it has joined. Any thread; never blocks."""
        order = self.order
        facts = self.experts.facts() if order is not None else None
        return None if order is None or facts is None else replace(facts, members=order.members)

    def leave(self) -> None:
        """End any wait of this rank; no step can follow."""
        if self._own is not None:
            self._own.raise_epoch(LAST_EPOCH, 0)

    def close(self) -> None:
        """Give the memory back, when nothing computes any more."""
        if self._carriers is not None:
            self._carriers.close()
        if self._own is not None:
            self._own.close()
        self._peers.clear()
        for window in self._mapped.values():
            window.close()
        self.experts.close()


# Windows of a group's ranks in shared memory: each rank makes its own and maps those of its peers.


class RankWindow:
    """One window, made or mapped by this process; a context manager that closes it.

    Attributes:
        memory: the window, writable; valid until this is closed.
    """

    def __init__(self, segment: UbSegment, *, own: bool) -> None:
        self._segment = segment
        self._own = own
        (region,) = segment.regions()
        self.memory = segment.view(region)

    @classmethod
    def create(cls, path: Path, shape: WindowShape, rank: int, role: NativeRole = NativeRole.BOTH) -> Self:
        """Make the window of a rank of this process, in the first epoch of a group of all `shape.ranks`.

        Raises: UbFullError, UbExistsError as `UbSegment.create`; ModelError if the sizes cannot be.
        Effects: a UB segment, removed by `close`.
        """
        library = group_library()
        segment = UbSegment.create(path, window_bytes(shape), max_regions=1)
        try:
            region = segment.allocate(window_bytes(shape), owner=f"rank {rank}")
            format_window(library, segment.view(region), shape, rank, (1 << shape.ranks) - 1, role)
            return cls(segment, own=True)
        except BaseException:
            segment.remove()
            raise

    @classmethod
    def attach(cls, path: str | Path) -> Self:
        """Map the window of a peer.

        Raises: UbError if there is none; GroupError if the segment is not such a window.
        """
        segment = UbSegment.attach(path)
        try:
            (region,) = segment.regions()
            if segment.view(region).nbytes < window_bytes(read_shape(segment.view(region))):
                raise ValueError
        except (ValueError, SpecError) as error:
            segment.close()
            raise GroupError(f"{path} is not a window of a rank") from error
        return cls(segment, own=False)

    @property
    def path(self) -> Path:
        """Path of the segment, for peers."""
        return self._segment.path

    @property
    def epoch(self) -> int:
        """Epoch that its owner has started."""
        return int.from_bytes(self.memory[EPOCH_OFFSET : EPOCH_OFFSET + 8], sys.byteorder)

    def raise_epoch(self, epoch: int, members: int) -> None:
        """Implements `rank_group.raise_epoch` for this rank."""
        raise_epoch(group_library(), self.memory, epoch, members)

    def close(self) -> None:
        """Unmap it; the rank's own segment is removed."""
        if self._own:
            self._segment.remove()
        else:
            self._segment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
