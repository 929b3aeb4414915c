"""bfloat16 weights in twelve bits: unpacking restores every bit, for any numbers."""

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from serving.errors import ModelError
from serving.model import loader
from serving.model.forms import StoredProduct
from serving.model.linear import LinearWeight
from serving.model.loader import load_model
from serving.model.native import panel_layout
from serving.model.native.layout import SHORT_INPUTS, Form
from serving.model.native.library import Library
from serving.model.native.panels import PanelForms, PanelHeads, PanelLinear
from tests.cases.nightly import mostly_nightly
from tests.model.image_shelf import ImageShelf
from tests.model.native.kernels import chosen_sets
from tests.model.native.native_libraries import NAMES, computing_with, own_library
from tests.model.native.panel_models import logits, products
from tests.model.random_checkpoint import write_random_checkpoint

# out_features, in_features: below, at and beyond panels and units; odd ones; several parts.
SHAPES = [(1, 1), (32, 64), (33, 65), (64, 130), (100, 1024), (70, 4100)]
# Rows: below, at and beyond what each instruction set restores within its kernel, and whole row blocks.
ROWS = (1, 2, 3, 4, 5, 6, 7, 12, 13, 16, 17, 31, 32, 33, 100, 300)


SAME_AS = "tests/model/native/test_short_form.py::test_products_are_the_same_to_the_bit"


@pytest.fixture(params=mostly_nightly(NAMES, chosen_sets(NAMES), SAME_AS))
def library(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[Library]:
    """Computes with one instruction set during a test."""
    with computing_with(request.param, pytestconfig.cache.mkdir("native-soft-tiles")) as library:
        yield library


@pytest.fixture
def own() -> Library:
    return own_library()


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def both(library: Library, weight: Tensor, bias: Tensor | None = None) -> list[PanelLinear | PanelHeads]:
    """The product in its plain form, and in its short one if it has one."""
    given = LinearWeight(weight, bias)
    return [PanelForms(library, short=short).linear(given) for short in (False, True)]


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_the_same_to_the_bit(library: Library, shape: tuple[int, int]) -> None:
    plain, short = both(library, random(1, *shape) / 50, random(2, shape[0]))
    assert (plain.form, short.form) == (Form.BF16, Form.BF16_SHORT)
    assert short.packed.nbytes < 0.8 * plain.packed.nbytes
    x = random(3, max(ROWS), shape[1])
    for rows in ROWS:
        assert same_bits(short(x[:rows]), plain(x[:rows])), rows


def test_heads_are_the_same_to_the_bit(library: Library) -> None:
    plain, short = both(library, random(1, 4, 96, 40))
    x = random(2, 33, 4, 96)
    assert short.form == Form.BF16_SHORT
    assert same_bits(short(x), plain(x))


def test_rare_exponents_are_listed(library: Library) -> None:
    """Some numbers of each panel are far from others: at its start and end, in both halves of a unit; not finite."""
    weight = random(1, 64, 512)
    flat = weight.view(-1)
    odd = torch.tensor([1e-30, -1e30, 0.0, -0.0, 1e-40, float("inf"), -float("inf"), 3e-20, -7e15]).bfloat16()
    for start in (0, 31 * 512, 32 * 512 + 5, 63 * 512 + 500, 17 * 512 + 66, 18 * 512 + 129):
        flat[start : start + len(odd)] = odd
    identity = torch.eye(512).bfloat16()
    plain, short = both(library, weight)
    assert short.form == Form.BF16_SHORT
    for rows in (identity, identity[:1], identity[500:508]):
        assert torch.equal(short(rows).isnan(), plain(rows).isnan())
        assert same_bits(short(rows).nan_to_num(1.0), plain(rows).nan_to_num(1.0))
    finite = torch.where(weight.isfinite() & (weight.abs() > 1e-37), weight, torch.zeros_like(weight))
    _plain, again = both(library, finite)
    assert torch.equal(again(identity), finite.T), "each number as it was"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bits_come_back(own: Library, data: st.DataObject) -> None:
    """A panel of any 16 bits, more or less alike: short or not, the product of each input alone equals the plain
    one's.
    """
    exponents = data.draw(st.lists(st.integers(0, 254), min_size=1, max_size=40))
    seed = data.draw(st.integers(0, 2**31))
    random_ = torch.Generator().manual_seed(seed)
    inputs = data.draw(st.sampled_from([3, 64, 200]))
    count = 32 * inputs
    common = torch.rand(count, generator=random_) ** data.draw(st.sampled_from([1.0, 4.0, 60.0]))
    of = torch.tensor(exponents)[(common * len(exponents)).long().clamp_max(len(exponents) - 1)]
    rest = torch.randint(0, 256, (count,), generator=random_)
    bits = (rest >> 7 << 15) | (of << 7) | (rest & 127)
    weight = (bits - ((bits >> 15) << 16)).to(torch.int16).view(torch.bfloat16).view(32, inputs)
    plain, short = both(own, weight)
    if len({exponent >> 1 for exponent in exponents}) <= 7:
        assert short.form == Form.BF16_SHORT, "zeros that pad and seven others have codes"
    identity = torch.eye(inputs).bfloat16()
    assert same_bits(short(identity), plain(identity))
    assert same_bits(short(identity[:1]), plain(identity[:1]))


def spread(rows: int, inputs: int) -> Tensor:
    """Weights of too many magnitudes."""
    return torch.logspace(-30, 30, rows * inputs).bfloat16().view(rows, inputs)


def test_what_is_never_short(own: Library) -> None:
    forms = PanelForms(own, short=True)
    long = random(1, 32, SHORT_INPUTS + 1)
    assert forms.linear(LinearWeight(long)).form == Form.BF16
    assert forms.linear(LinearWeight(long[:, :-1].contiguous())).form == Form.BF16_SHORT
    assert forms.linear(LinearWeight(random(1, 32, 64), many_rows=True)).form == Form.BF16
    assert forms.linear(LinearWeight(random(1, 32, 64).float())).form == Form.F32
    weight = spread(96, 128)
    product = forms.linear(LinearWeight(weight))
    assert product.form == Form.BF16
    x = random(1, 5, 128)
    assert same_bits(product(x), PanelForms(own).linear(LinearWeight(weight))(x))
    after = forms.linear(LinearWeight(random(2, 96, 128)))
    assert after.form == Form.BF16_SHORT
    assert same_bits(product(x), PanelForms(own).linear(LinearWeight(weight))(x)), "not overwritten by the next"


@pytest.mark.parametrize(
    "weight", [random(1, 40, 96), spread(40, 96), random(1, 3, 96, 40)], ids=["short", "not", "heads"]
)
def test_stored_products(own: Library, weight: Tensor) -> None:
    forms = PanelForms(own, short=True)
    given = LinearWeight(weight, random(2, 40) if weight.dim() == 2 else None)
    shape = forms.packed_shape(LinearWeight(weight.to("meta"), given.bias))
    memory = memoryview(mmap.mmap(-1, shape.nbytes))
    forms.write(given, shape, memory)
    stored = StoredProduct(memory, tuple(weight.shape), weight.dtype, shape.layout, given.bias)
    x = random(3, *((9, 96) if weight.dim() == 2 else (9, 3, 96)))
    assert same_bits(forms.over(stored)(x), forms.linear(given)(x))
    assert forms.over(stored).form == forms.linear(given).form
    for wrong in (memory[:-64], memory[:64], memory[:0]):
        with pytest.raises(ModelError, match="are not panels of"):
            forms.over(StoredProduct(wrong, stored.shape, stored.dtype, stored.layout, None))
    with pytest.raises(ModelError, match="are not panels of"):
        forms.over(StoredProduct(memory, stored.shape, torch.float32, stored.layout, None))


def test_a_model_of_short_weights(tmp_path: Path, own: Library) -> None:
    folder = write_random_checkpoint(tmp_path, attention_bias=True, own_draft_head=True)
    plain = load_model(folder, dtype="bfloat16", native=True, short=False)
    shelf = ImageShelf()
    for images in (None, shelf, shelf):
        short = load_model(folder, dtype="bfloat16", native=True, short=True, images=images)
        assert {product.form for product in products(short)} == {Form.F32, Form.BF16, Form.BF16_SHORT}
        assert torch.equal(logits(short), logits(plain))
    assert len(shelf.stored) == 1
    load_model(folder, dtype="bfloat16", native=True, short=False, images=shelf)
    assert len(shelf.stored) == 2, "who wants them otherwise has an image of its own"


@pytest.mark.parametrize(
    ("pay", "name", "cache", "form"),
    [
        (True, "avx512", 1000, Form.BF16_SHORT),
        (True, "avx512", 1 << 30, Form.BF16),
        (True, "amx", 1 << 30, Form.BF16_SHORT),
        (False, "avx512", 1000, Form.BF16),
    ],
)
def test_they_are_short_by_themselves_where_that_pays(
    own: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pay: bool, name: str, cache: int, form: Form
) -> None:
    class Knowing(Library):
        short_weights_pay = property(lambda self: pay)
        instructions = property(lambda self: name)

    monkeypatch.setattr(loader, "load_library", lambda: Knowing(own.path))
    monkeypatch.setattr(panel_layout, "last_level_cache_bytes", lambda: cache)
    model = load_model(write_random_checkpoint(tmp_path), dtype="bfloat16", native=True)
    assert isinstance(model.head, PanelLinear)
    assert model.head.form == form


def test_they_pay_with_amx_and_on_zen_5(library: Library) -> None:
    told = dict(re.findall(r"^(vendor_id|cpu family)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    zen5 = told.get("vendor_id") == "AuthenticAMD" and int(told["cpu family"]) >= 26
    assert library.short_weights_pay == (library.instructions == "amx" or (library.instructions == "avx512" and zen5))


def test_the_library_refuses_what_cannot_be(own: Library, tmp_path: Path) -> None:
    forms = PanelForms(own, short=True)
    product = forms.linear(LinearWeight(random(1, 32, 64)))
    product.linear.in_features = SHORT_INPUTS + 64
    with pytest.raises(ModelError, match="a product of 32 x 8256 in 1 groups of form 4"):
        own.apply(product.linear, 0, 1, Form.BF16, 0, 1)


@pytest.mark.parametrize("at", [16, 17, 18, 19, 64, 64 + 32 * 192, 64 + 32 * 192 + 3])
def test_damaged_weights_give_wrong_numbers_and_nothing_worse(library: Library, at: int) -> None:
    """An invalid count or position: no byte outside of the panel is written, which a neighbour would show."""
    weight = random(1, 96, 128)
    weight[0, :20] = spread(1, 20)
    product = both(library, weight)[1]
    assert product.form == Form.BF16_SHORT
    whole = bytes(product.packed)
    x = random(3, 40, 128)
    right = product(x)
    product.packed[at] ^= 0xFF
    for rows in (1, 2, 7, 40):
        assert same_bits(product(x[:rows])[:, 32:], right[:rows, 32:]), "other panels are as they were"
    product.packed[:] = whole
    assert same_bits(product(x), right)
