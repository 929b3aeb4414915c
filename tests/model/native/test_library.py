"""The interface between Python and the library: the same structs, and an error for invalid arguments."""

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import cast

import pytest

from serving.errors import ModelError
from serving.model.native import layout
from serving.model.native import library as native
from serving.model.native.layout import SHORT_INPUTS, W8A16_INPUTS, Form, NativeLinear
from serving.model.native.library import Library, load, tiles_agree, trusted
from tests.model.native.native_libraries import computing_with, own_library

STRUCTS: dict[str, type[ctypes.Structure] | None] = {
    "linear": layout.NativeLinear,
    "block": layout.NativeBlock,
    "draft_layer": layout.NativeDraftLayer,
    "model": layout.NativeModel,
    "cache": layout.Cache,
    "batch": layout.Batch,
    "answer": layout.NativeOutput,
    "sequence": None,
}
"""By the header's name; a sequence is a record of an array, not a structure."""


@pytest.fixture
def library() -> Library:
    return own_library()


@pytest.mark.skipif("CI" not in os.environ, reason="at a desk without a compiler torch computes")
def test_it_is_there_where_nothing_may_be_skipped() -> None:
    assert load() is not None


def test_structs_have_the_same_size_on_both_sides(library: Library) -> None:
    for name, size in layout.SIZES.items():
        assert library.functions.cm_size_of(name.encode()) == size, name
    assert library.functions.cm_size_of(b"cm_nothing") == 0
    assert library.packed_bytes(33, 65, 2, Form.F32) == 2 * 2 * 32 * 128 * 4
    assert library.packed_bytes(33, 65, 2, Form.BF16) == 2 * 2 * 32 * 128 * 2
    assert library.packed_bytes(33, 65, 2, Form.INT8) == 2 * 2 * 32 * (128 + 4 + 4)
    assert library.packed_bytes(33, 65, 2, Form.W8A16) == 2 * 2 * 32 * (128 + 4 + 4) + 2 * 128 * 4


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump, a part of binutils")
def test_no_hot_loop_keeps_its_sums_on_the_stack(library: Library) -> None:
    """Panels in short form are left out: they are restored on the stack."""
    command = ["objdump", "-d", "-C", "--no-show-raw-insn", str(library.path)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    functions = re.split(r"\n\n(?=[0-9a-f]+ <)", listing)
    products, attention = r"fixed_block<cm::avx(2|512)::(F32|Bf16|Int8)", r"cm::avx(2|512)::(score_keys|weighted_sum)<"
    kernels = [code for code in functions if re.match(rf".*<.*\b({products}|{attention})", code)]
    assert any("score_keys" in code[:100] for code in kernels)
    for code in kernels:
        assert not re.search(r"\tvmov\w+ +%[yz]mm\d+,-?(0x)?[0-9a-f]*\(%r[sb]p", code), code[:100]


def test_every_field_stands_where_the_header_has_it() -> None:
    """Names and order; the tests of sizes show that no field is between them."""
    header = (Path(native.__file__).with_name("interface.h")).read_text()
    for name, struct in STRUCTS.items():
        body = header[: header.index(f"}} cm_{name};")].rsplit("typedef struct {", 1)[1]
        code = " ".join(line.split("//")[0] for line in body.splitlines())
        declared = [part for field in code.split(";") if field.strip() for part in field.split(",")]
        wanted = [part.split()[-1].lstrip("*") for part in declared]
        found = list(layout.SEQUENCE.names or ()) if struct is None else [field[0] for field in struct._fields_]
        assert found == wanted, name


@pytest.mark.parametrize("mistake", [{"INTERFACE": 99}, {"SIZES": {"cm_linear": 1}}])
def test_a_library_of_other_sources_is_refused(
    library: Library, monkeypatch: pytest.MonkeyPatch, mistake: dict[str, object]
) -> None:
    for name, value in mistake.items():
        monkeypatch.setattr(native, name, value)
    with pytest.raises(ModelError, match="build it again"):
        Library(library.path)


def test_instructions_and_calls_that_cannot_be(library: Library) -> None:
    assert library.instructions == native.instructions()
    assert library.instructions in ("amx", "avx512", "avx2", "portable")
    with pytest.raises(ModelError, match="the instructions mmx are not to be had"):
        library.use_instructions("mmx")
    for weights in (Form.INT8, Form.W8A16):
        linear = NativeLinear(32, 64, 1, weights)
        with pytest.raises(ModelError, match="need their scales"):
            library.pack(0, None, linear, 0)
    for rows, form, threads in ((-1, 0, 1), (1, 0, 0), (1, 2, 1)):
        with pytest.raises(ModelError, match=f"a product of {rows} rows"):
            library.apply(linear, 0, rows, Form(form), 0, threads)


@pytest.mark.parametrize(
    "linear",
    [
        *(
            NativeLinear(0, 64, 1, 0),
            NativeLinear(32, -1, 1, 0),
            NativeLinear(32, 64, 0, 0),
            NativeLinear(32, 64, 1, 5),
            NativeLinear(32, 64, 1, -1),
        ),
        NativeLinear(32, W8A16_INPUTS + 1, 1, Form.W8A16),
        NativeLinear(32, SHORT_INPUTS + 1, 1, Form.BF16_SHORT),
    ],
)
def test_products_that_cannot_be(library: Library, linear: NativeLinear) -> None:
    with pytest.raises(ModelError, match="a product of"):
        library.pack(0, None, linear, 0)
    with pytest.raises(ModelError, match="a product of"):
        library.apply(linear, 0, 1, Form.F32, 0, 1)


@pytest.mark.nightly("tests/model/native/test_library.py::test_tiles_that_fail_are_not_used")
def test_tiles_are_tried_before_they_are_trusted(pytestconfig: pytest.Config) -> None:
    with computing_with("soft_tiles", pytestconfig.cache.mkdir("native-soft-tiles")) as soft:
        assert tiles_agree(soft.functions)
        assert trusted(soft).instructions == "amx"


class Rotten:
    """A library whose tiles compute wrong results."""

    def __init__(self) -> None:
        self.instructions = "amx"
        self.functions = self

    def use_instructions(self, name: str) -> None:
        self.instructions = name

    def __getattr__(self, name: str) -> object:
        assert name.startswith("cm_")
        return lambda *_: 4096 if name == "cm_packed_bytes" else name == "cm_apply"


def test_tiles_that_fail_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    library = trusted(cast(Library, Rotten()))
    assert library.instructions == "avx512"
    assert "please report it" in caplog.text
