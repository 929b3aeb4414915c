"""Slots of a rank hold the model's experts, for every way of filling them, and nothing after a failure."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from serving.errors import ExpertError, ModelError, PlacementError
from serving.model.loader import product_forms
from serving.model.model import Model
from serving.model.native.layout import NativeLinear
from serving.model.native.library import load
from serving.model.native.panels import AbsentPanels, PanelLinear
from serving.model.slots import expert_slots
from serving.model.slots.expert_record import PackedProduct
from serving.model.slots.expert_slots import CopiedSlots, ExpertSlots, MappedSlots, fill_all, make_slots
from serving.model.slots.expert_sources import (
    CheckpointExperts,
    LoadedExperts,
    expert_layers,
    expert_source,
    packed_expert,
)
from serving.model.slots.slot_region import PeerSlots, SlotLayout, SlotRegion
from serving.model.slots.stored_experts import names_of_layers
from tests.hardware.ub.resident import resident_bytes
from tests.model.image_shelf import FileShelf
from tests.model.int8_checkpoint import round_to_int8
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.slots.experts import contents, panel_model

pytestmark = pytest.mark.skipif(load() is None, reason="there is no native library here")

CONTENTS = ((1, 6, None), (7, 0, 3), (2, None, 5))
"""Of three slots in each of the three expert layers, the draft layer's last."""
MODELS = ("float32", "bfloat16", "short", "int8", "coarse drafts")


def prepare(folder: Path, kind: str) -> dict[str, Any]:
    """Write a checkpoint. Returns: the way to load it."""
    write_random_checkpoint(folder, dtype="float32" if kind == "float32" else "bfloat16")
    if kind == "int8":
        round_to_int8(folder)
    return {"short": kind == "short", "coarse_drafts": kind == "coarse drafts"}


def region_for(source: LoadedExperts | CheckpointExperts, path: Path, slots: int = 3) -> SlotRegion:
    """A region with room for the experts of a source."""
    return SlotRegion(path, SlotLayout.of(slots, [source.room(layer) for layer in range(source.layers)]))


def checkpoint_experts(folder: Path, how: dict[str, Any]) -> CheckpointExperts:
    """Experts of a test checkpoint."""
    model = panel_model(folder, routed_experts=False, **how)
    found = expert_source(model, folder, lambda: product_forms(folder, model.device, native=True, **how))
    assert isinstance(found, CheckpointExperts)
    return found


def products(model: Model, layer: int, expert: int) -> tuple[PanelLinear, PanelLinear]:
    """An expert's products in a loaded model."""
    experts = list(expert_layers(model).values())[layer].experts
    gate_up, down = experts.gate_up[expert], experts.down[expert]  # type: ignore[attr-defined] # local experts
    return gate_up, down


def bits(linear: NativeLinear, inputs: int, outputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Result of the native library for a slot's product."""
    library = load()
    assert library is not None
    x = torch.randn(3, inputs, generator=torch.Generator().manual_seed(1)).to(dtype)
    y = x.new_empty(3, outputs)
    form = {torch.float32: 0, torch.bfloat16: 1}[dtype]
    library.apply(linear, x.data_ptr(), 3, form, y.data_ptr(), 1)  # type: ignore[arg-type] # a form's number
    return y


def assert_holds(slots: ExpertSlots, model: Model) -> None:
    """Every slot computes like its expert in the model; empty ones have no outputs."""
    for layer, held in enumerate(CONTENTS):
        for slot, expert in enumerate(held):
            number = slots.layout.number(layer, slot)
            gate_up, down = slots.table.gate_up[number], slots.table.down[number]
            if expert is None:
                assert gate_up.out_features == down.out_features == 0
                continue
            for linear, product in zip((gate_up, down), products(model, layer, expert), strict=True):
                sizes = (product.in_features, product.out_features, model.dtype)
                assert linear.form == product.form
                assert torch.equal(bits(linear, *sizes), bits(product.linear, *sizes))


def test_whoever_publishes_second_finds_all_of_it_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's thread may be writing an expert that another thread is about to name in a map."""
    source = LoadedExperts(panel_model(tmp_path, **prepare(tmp_path, "bfloat16")))
    slots = MappedSlots(source, 1)
    slots.fill(0, 0, 3)
    writing, go_on = threading.Event(), threading.Event()
    linear = expert_slots._linear

    def slow(product: PackedProduct) -> NativeLinear:
        writing.set()
        assert go_on.wait(60.0)
        return linear(product)

    monkeypatch.setattr(expert_slots, "_linear", slow)
    first = threading.Thread(target=slots.table.publish)
    first.start()
    assert writing.wait(60.0)
    second = threading.Thread(target=slots.table.publish)
    second.start()
    second.join(0.05)
    assert second.is_alive(), "not before the slot can be named"
    go_on.set()
    second.join()
    assert slots.table.gate_up[0].out_features
    first.join()


@pytest.mark.parametrize("kind", ["mapped", "copied"])
def test_a_reserve_takes_no_memory_and_points_to_the_source(tmp_path: Path, kind: Literal["mapped", "copied"]) -> None:
    model = panel_model(tmp_path / "model", **prepare(tmp_path / "model", "bfloat16"))
    source = LoadedExperts(model)
    slots = make_slots(kind, source, 1, tmp_path / "slots", reserve=8)
    assert slots.layout.count == 27
    assert slots.layout.nbytes == sum(slots.layout.room)
    fill_all(slots, [[layer] for layer in range(3)])
    slots.fill(1, 6, 5)
    slots.table.publish()
    for layer, slot, expert in ((0, 0, 0), (1, 0, 1), (2, 0, 2), (1, 6, 5)):
        linear = slots.table.gate_up[slots.layout.number(layer, slot)]
        gate_up, _ = products(model, layer, expert)
        sizes = (gate_up.in_features, gate_up.out_features, model.dtype)
        assert torch.equal(bits(linear, *sizes), bits(gate_up.linear, *sizes))
    assert slots.table.gate_up[slots.layout.number(1, 6)].packed == products(model, 1, 5)[0].linear.packed
    slots.empty(1, 6)
    slots.table.publish()
    assert slots.table.gate_up[slots.layout.number(1, 6)].out_features == 0
    if slots.offer is not None:
        with pytest.raises(ExpertError, match="only the first 1 have their own memory"):
            PeerSlots(slots.offer).record(1, 6)
    slots.close()


@pytest.mark.parametrize("kind", MODELS)
def test_slots_compute_as_the_model_from_every_source(tmp_path: Path, kind: str) -> None:
    how = prepare(tmp_path / "model", kind)
    model = panel_model(tmp_path / "model", **how)
    loaded = LoadedExperts(model)
    mapped = make_slots("mapped", loaded, 3, tmp_path / "none")
    assert isinstance(mapped, MappedSlots)
    fill_all(mapped, CONTENTS)
    assert_holds(mapped, model)

    copied = CopiedSlots(region_for(loaded, tmp_path / "a"), loaded)
    fill_all(copied, CONTENTS)
    assert_holds(copied, model)

    read = checkpoint_experts(tmp_path / "model", how)
    fresh = make_slots("copied", read, 3, tmp_path / "b")
    fill_all(fresh, CONTENTS)
    assert_holds(fresh, model)

    assert copied.offer is not None
    peer, third = PeerSlots(copied.offer), CopiedSlots(region_for(loaded, tmp_path / "c"), loaded)
    for layer, held in enumerate(CONTENTS):
        for slot, expert in enumerate(held):
            if expert is not None:
                third.fill(layer, slot, expert, peer.record(layer, slot))
    third.table.publish()
    assert_holds(third, model)
    for slots in (copied, fresh, third):
        slots.close()
        assert_holds(slots, model)  # mapped memory stays


def test_short_weights_take_less_room_where_all_can_be_short(tmp_path: Path) -> None:
    prepare(tmp_path, "short")
    short, plain = (LoadedExperts(panel_model(tmp_path, short=short)) for short in (True, False))
    assert short.room(0) < 0.9 * plain.room(0)


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedExperts:
    """Experts of a bfloat16 model."""
    prepare(tmp_path / "model", "bfloat16")
    return LoadedExperts(panel_model(tmp_path / "model"))


@pytest.fixture
def new_slots(tmp_path: Path, loaded: LoadedExperts) -> Iterator[Callable[[], CopiedSlots]]:
    """Factory of slots with regions that are removed after the test."""
    made = list[CopiedSlots]()

    def make() -> CopiedSlots:
        made.append(CopiedSlots(region_for(loaded, tmp_path / f"slots{len(made)}"), loaded))
        return made[-1]

    yield make
    for slots in made:
        slots.close()


def test_fills_that_fail_and_peers_that_are_gone_are_named(
    new_slots: Callable[[], CopiedSlots], tmp_path: Path
) -> None:
    one, other = new_slots(), new_slots()
    fill_all(one, CONTENTS)
    fill_all(other, CONTENTS)
    assert one.offer is not None
    number = one.layout.number(1, 2)
    one.record(number)[-90] ^= 4  # what the peer holds is damaged
    with pytest.raises(ExpertError, match="slot 0 stays empty: layer 1, expert 3: the checksum"):
        other.fill(1, 0, 3, PeerSlots(one.offer).record(1, 2))
    other.table.publish()
    assert other.table.gate_up[other.layout.number(1, 0)].out_features == 0
    assert other.offer is not None
    with pytest.raises(ExpertError, match="holds no expert"):
        one.fill(1, 1, 7, PeerSlots(other.offer).record(1, 0))
    with pytest.raises(ExpertError, match="slot 3: there are 3 layers of 3 slots"):
        one.fill(1, 3, 7)
    slots = new_slots()
    assert slots.offer is not None
    peer = PeerSlots(slots.offer)
    slots.close()
    with pytest.raises(ExpertError, match="cannot be read"):
        peer.record(0, 0)
    again = SlotRegion(slots.offer.path, slots.layout)
    with pytest.raises(ExpertError, match="no longer the peer's segment"):
        peer.record(0, 0)
    again.close()


def test_arrays_change_between_steps_only(new_slots: Callable[[], CopiedSlots]) -> None:
    slots, told = new_slots(), list[str]()
    fill_all(slots, CONTENTS)
    slots.empty(0, 0)
    slots.fill(0, 2, 4, published=lambda: told.append("filled"))
    assert [slots.table.gate_up[slot].out_features > 0 for slot in range(3)] == [True, True, False]
    assert told == []
    slots.table.publish()
    assert [slots.table.gate_up[slot].out_features > 0 for slot in range(3)] == [False, True, True]
    slots.table.publish()
    assert told == ["filled"]

    def stop(nbytes: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        new_slots().stage(0, 4, None, stop)


def test_what_is_staged_fills_a_slot_later(new_slots: Callable[[], CopiedSlots], loaded: LoadedExperts) -> None:
    slots = new_slots()
    staged = slots.stage(2, 4, None)
    assert staged is not None
    slots.fill(2, 1, 4, staged)
    slots.table.publish()
    held = slots.table._held[slots.layout.number(2, 1)]
    assert held is not None
    assert contents(held) == contents(loaded.expert(2, 4))
    slots.empty(2, 1)
    slots.table.publish()
    assert slots.table.down[slots.layout.number(2, 1)].out_features == 0


def test_a_model_without_its_experts_is_loaded_without_reading_them(tmp_path: Path) -> None:
    prepare(tmp_path, "bfloat16")
    read = list[int]()
    model = panel_model(tmp_path, routed_experts=False, progress=lambda done, of: read.append(of - done))
    assert names_of_layers(model.config, list(expert_layers(model))) == ("1", "2", "draft")
    assert read[-1] >= 3 * 8 * 3, "three matrices of eight experts in three layers"
    assert all(isinstance(one, AbsentPanels) for one in products(model, 0, 5))
    with pytest.raises(ModelError, match="AbsentPanels"):
        packed_expert(*products(model, 0, 5))
    with pytest.raises(AssertionError, match="without weights"):
        products(model, 0, 5)[0](torch.ones(1, 64))


def test_experts_of_an_image_leave_the_page_tables_and_stay_readable(tmp_path: Path) -> None:
    """On shared memory only: private memory of the process would be lost."""
    prepare(tmp_path / "model", "bfloat16")
    shelf = FileShelf(tmp_path)
    experts = LoadedExperts(panel_model(tmp_path / "model", shelf))
    before = contents(experts.expert(1, 3))
    memory = experts.expert(1, 3).gate_up.packed
    assert resident_bytes(memory) > 0
    experts.forget()
    assert resident_bytes(memory) == 0
    assert contents(experts.expert(1, 3)) == before
    private = LoadedExperts(panel_model(tmp_path / "model"))
    private.forget()
    assert contents(private.expert(1, 3)) == before


def test_slots_that_the_exchange_cannot_name_and_models_without_experts_are_refused(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, first_k_dense_replace=3, num_nextn_predict_layers=0)
    with pytest.raises(ModelError, match="no routed experts"):
        LoadedExperts(panel_model(tmp_path))
    with pytest.raises(PlacementError, match="a rank has 1 to 65536"):
        SlotLayout.of(2000, [64] * 40)
    with pytest.raises(PlacementError):
        SlotLayout.of(0, [64])
