"""Records of ranks on other nodes: read at a pace, or not at all."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import cast

import msgspec
import pytest

from hardware.ub.exchange_layout import WindowShape
from serving.config.experts import ExpertsConfig
from serving.errors import ExpertError
from serving.group.compute.carrier import Carriers
from serving.group.compute.far_slots import PIECE_BYTES, FarSlots, send_record
from serving.group.compute.rank_experts import RankExperts
from serving.group.compute.rank_parts import RankParts
from serving.group.compute.slot_mover import SlotMover
from serving.group.core.group_map import regroup_map
from serving.ids import NodeId, ReplicaId
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model, product_forms
from serving.model.native.rank_group import RankGroup
from serving.model.slots.expert_slots import CopiedSlots, RoutedExperts, fill_all, make_slots
from serving.model.slots.slot_region import PeerSlots, SlotLayout
from serving.sockets.proof import framed
from serving.sockets.secrets import ClusterSecrets
from serving.values.expert_map import (
    ExpertMove,
    ExpertSlot,
    FetchExpert,
    GateRule,
    LoadExpert,
    MoveAnswer,
    MoveFetched,
    RankEvent,
)
from serving.values.group import RankOffer, RegroupOrder
from serving.values.instances import InstancePlace, RankPlace
from tests.group.live.ranks_with_slots import IdleRank
from tests.instance.native_pair import native_or_skip
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.slots.experts import MadeExperts
from tests.sockets.certificates import Authority

SECRETS = ClusterSecrets(("a secret",))
WIDE = SlotLayout.of(1, [4 * PIECE_BYTES])


def at_once(nbytes: int) -> None:
    """A pace without pauses."""


def slots_in(path: Path, source: MadeExperts, *experts: int | None) -> CopiedSlots:
    made = make_slots("copied", source, len(experts), path)
    assert isinstance(made, CopiedSlots)
    fill_all(made, [experts])
    return made


@pytest.fixture(params=[False, True], ids=["tcp", "tls"])
def peer(
    shm: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[CopiedSlots, Carriers, FarSlots]]:
    """Slots of rank 1 on another node, with experts 4 and 5."""
    native_or_skip()
    for name, value in Authority(tmp_path / "tls").issue("127.0.0.1").items() if request.param else ():
        monkeypatch.setenv(name, value)
    slots = slots_in(shm / "peer", MadeExperts(1), 4, 5)
    assert slots.offer is not None
    carriers = Carriers(memoryview(b""), WindowShape(2, 4, 2, 64, 64), (1, "n1", 7), SECRETS, 20.0)
    carriers.slots = PeerSlots(slots.offer).record
    offer = RankOffer(1, 7, "", "", slots=msgspec.msgpack.encode(slots.offer), carrier=carriers.start("127.0.0.1"))
    yield slots, carriers, carriers.slots_of(offer)
    carriers.close()
    slots.close()


def test_an_expert_comes_from_another_node_and_a_damaged_one_from_the_own_source(
    peer: tuple[CopiedSlots, Carriers, FarSlots], shm: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs, _, far = peer
    source, events = MadeExperts(1), list[MoveAnswer]()
    own = slots_in(shm / "own", source, None, None)
    both, done = [ExpertMove(0, 4 + i, ExpertSlot(0, i), ExpertSlot(1, i)) for i in range(2)], threading.Event()

    def report(event: MoveAnswer) -> None:
        events.append(event)
        if len(events) == 4:
            done.set()

    mover = SlotMover(0, own, ((None, None),), report, 1e12)
    mover.join(IdleRank(own), {1: far})
    theirs.record(1)[-1000] ^= 1
    for move in both:
        mover.take(FetchExpert(move))
        mover.take(LoadExpert(move))
    assert done.wait(60.0), events
    mover.close()
    assert source.asked == [(0, 5)]
    assert "expert 5: the checksum" in caplog.text
    assert bytes(own.record(0)) == bytes(theirs.record(0))
    own.close()


@pytest.mark.parametrize("image", [False, True])
def test_a_rank_with_an_image_of_the_weights_takes_no_copy_from_another_node(image: bool, shm: Path) -> None:
    theirs, source = slots_in(shm / "theirs", MadeExperts(1), 3), MadeExperts(1)
    source.in_place = image
    routed, answers = RoutedExperts(source, 4, GateRule(), ("0",)), SimpleQueue[tuple[RankEvent, ...]]()
    experts = RankExperts(ExpertsConfig(redundant=1), RankPlace(0, 2, 2, "g"), routed, shm / "own")
    assert theirs.offer is not None
    experts.join(cast(RankGroup, None), [], {1: PeerSlots(theirs.offer)})
    source.asked.clear()
    move = ExpertMove(0, 3, ExpertSlot(0, 2), ExpertSlot(1, 0))
    experts.carry_out([FetchExpert(move)], answers.put)
    assert answers.get(timeout=60.0) == (MoveFetched(move),)
    assert source.asked == [(0, 3)] * image
    experts.close()
    theirs.close()


def test_what_cannot_be_read_says_why(peer: tuple[CopiedSlots, Carriers, FarSlots]) -> None:
    theirs, carriers, far = peer
    theirs.close()
    with pytest.raises(ExpertError, match="layer 0, slot 1: the peer's slots cannot be read"):
        far.record(0, 1, at_once)
    carriers.slots = None
    with pytest.raises(ExpertError, match="this rank has no slots of its own"):
        far.record(0, 1, at_once)
    carriers.close()
    with pytest.raises(ExpertError, match=r"slot 1: the peer's slots cannot be read .*refused"):
        far.record(0, 1, at_once)


def test_bytes_arrive_at_the_pace_and_a_copy_that_is_given_up_ends() -> None:
    """The owner stops with its reader."""
    reader, owner = socket.socketpair()
    ended = threading.Event()

    def send() -> None:
        with closing(owner), pytest.raises(OSError, match=r"Broken pipe|reset"):
            send_record(owner, lambda layer, slot: memoryview(bytes(64 << 20)), time.monotonic() + 60.0)
        ended.set()

    threading.Thread(target=send, daemon=True).start()
    paced = list[int]()

    def pace(nbytes: int) -> None:
        paced.append(nbytes)
        if len(paced) == 4:
            raise ExpertError("the move was abandoned")

    with pytest.raises(ExpertError, match="abandoned"):
        FarSlots(WIDE, lambda limit_s: reader).record(0, 0, pace)
    assert paced == [0, *[PIECE_BYTES] * 3]
    assert ended.wait(60.0)


@pytest.mark.parametrize("answered", [0, 1])
def test_a_silent_owner_is_given_up(answered: int) -> None:
    reader, owner = socket.socketpair()
    owner.sendall(framed(b"") * answered)
    with closing(owner), pytest.raises(ExpertError, match="slot 0: the peer's slots cannot be read"):
        FarSlots(WIDE, lambda limit_s: reader, stall_s=0.01).record(0, 0, at_once)


def test_an_expert_moves_to_a_node_without_the_checkpoint(tmp_path: Path, shm: Path) -> None:
    native_or_skip()
    folder = write_random_checkpoint(tmp_path, dtype="bfloat16")
    model = load_model(folder, dtype="bfloat16", native=True, routed_experts=False)
    forms, answers = partial(product_forms, folder, model.device, native=True), SimpleQueue[tuple[RankEvent, ...]]()
    ranks, config = list[RankParts](), ExpertsConfig(across_nodes=True, redundant=1)
    for number in range(2):
        rank_place = RankPlace(number, 2, 2, "decode#far")
        (node, beside), host = (NodeId(f"n{number}"), shm / f"r{number}"), "127.0.0.1"
        place = InstancePlace(ReplicaId(f"r{number}"), "decode", node, (), beside, host, 1, rank_place)
        ranks.append(RankParts(config, place, model, folder, forms))
        ranks[-1].executor(KvCache(model.config, 8, 4, model.dtype, num_layers=len(model.config.layers)), 1, 8)
        ranks[-1].listen(host, SECRETS)
    offers = tuple(rank.offer("a layout") for rank in ranks)
    order = RegroupOrder(1, regroup_map({one.rank: one.held for one in offers}, 2, offers[0].experts, 1), offers)
    for rank in ranks:
        rank.follow(order)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    (moved, *_), spare = offers[1].held[0], len(offers[0].held[0]) - 1
    assert moved is not None
    move = ExpertMove(0, moved, ExpertSlot(0, spare), ExpertSlot(1, 0))
    ranks[0].carry_out([FetchExpert(move)], answers.put)
    assert answers.get(timeout=60.0) == (MoveFetched(move),)
    for rank in ranks:
        rank.close()
