"""Draft layers in INT8: identical when fresh and on an image, with routers and the model itself unchanged."""

from pathlib import Path

import pytest
import torch

from serving.model.experts import ExpertLayer, LocalExperts
from serving.model.linear import LinearWeight
from serving.model.loader import load_model
from serving.model.model import Model
from serving.model.native import library
from serving.model.native.panels import PanelLinear
from serving.model.weight_bank import coarse
from tests.model.image_shelf import ImageShelf
from tests.model.latent import latent_weights
from tests.model.random_checkpoint import write_random_checkpoint

pytestmark = pytest.mark.skipif(library.load() is None, reason="needs the native library")


def forms(model: Model) -> dict[str, int]:
    """Stored forms of a few products of the draft layer and of the model."""
    draft, last = model.mtp[0], model.blocks[-1]
    assert isinstance(draft.block.feed, ExpertLayer)
    assert isinstance(last.feed, ExpertLayer)
    assert isinstance(draft.block.feed.experts, LocalExperts)
    found = {
        "fuse": draft.fuse,
        "into": latent_weights(draft.block).into,
        "gate": draft.block.feed.gate.score,
        "expert": draft.block.feed.experts.down[0],
        "head": draft.head,
        "model's head": model.head,
        "model's gate": last.feed.gate.score,
    }
    return {name: form_of(product) for name, product in found.items()}


def form_of(product: object) -> int:
    assert isinstance(product, PanelLinear)
    return int(product.form)


@pytest.mark.parametrize("own_head", [False, True])
def test_which_products_are_int8(tmp_path: Path, own_head: bool) -> None:
    folder = write_random_checkpoint(tmp_path / "model", own_draft_head=own_head)
    plain = load_model(folder, native=True)
    assert set(forms(plain).values()) == {forms(plain)["gate"]}
    found = forms(load_model(folder, native=True, coarse_drafts=True))
    floating = {name for name, form in found.items() if form == forms(plain)["gate"]}
    assert floating == {"gate", "model's head", "model's gate"}


def test_an_image_holds_them_so(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model")
    shelf = ImageShelf()
    fresh = load_model(folder, native=True, coarse_drafts=True)
    first = load_model(folder, native=True, coarse_drafts=True, images=shelf)
    assert forms(first) == forms(fresh)
    load_model(folder, native=True, images=shelf)
    assert len(shelf.images) == 2, "the two forms are two images"
    x = torch.randn(3, fresh.config.hidden_size, generator=torch.Generator().manual_seed(0))
    assert torch.equal(first.mtp[0].head(x), fresh.mtp[0].head(x))


def test_what_is_int8_already_stays() -> None:
    given = LinearWeight(torch.ones(2, 3, dtype=torch.int8), None, torch.ones(2))
    assert coarse(given) is given
