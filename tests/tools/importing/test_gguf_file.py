"""Tables and numbers of GGUF files: every type of value, every type of tensor, and invalid bytes."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import ModelError
from serving.tools.importing.gguf_file import GgufFile, is_readable

VALUES: dict[str, object] = {
    "a.text": "Grüße 🐸", "a.empty": "", "a.whole": 7, "a.negative": -3, "a.large": 1 << 40, "a.number": 1e-5,
    "a.double": 0.1, "a.true": True, "a.texts": ["eins", "zwei", ""], "a.numbers": [0.1, -2.5],
    "a.wholes": [1, 2, 3], "a.flags": [True, False],
}  # fmt: skip


def write_file(path: Path) -> Path:
    """One of each type of value, and a tensor."""
    writer = GGUFWriter(path, "llama")
    writer.add_string("a.text", "Grüße 🐸")
    writer.add_key_value("a.empty", "", gguf.GGUFValueType.STRING)
    writer.add_uint8("a.whole", 7)
    writer.add_int32("a.negative", -3)
    writer.add_uint64("a.large", 1 << 40)
    writer.add_float32("a.number", 1e-5)
    writer.add_float64("a.double", 0.1)
    writer.add_bool("a.true", True)
    writer.add_array("a.texts", ["eins", "zwei", ""])
    writer.add_array("a.numbers", [0.1, -2.5])
    writer.add_array("a.wholes", [1, 2, 3])
    writer.add_array("a.flags", [True, False])
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("second", np.ones((3, 2, 4), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_file(tmp_path_factory.mktemp("gguf") / "good.gguf")


def test_values_and_tensors_of_every_type(good: Path) -> None:
    found = GgufFile.open(good).values
    assert {name: found[name] for name in VALUES} == VALUES
    assert [type(found[name]) for name in VALUES] == [type(value) for value in VALUES.values()]

    tensors = GgufFile.open(good).tensors
    assert torch.equal(tensors["first"].read(), torch.arange(6.0).reshape(2, 3))
    assert torch.equal(tensors["first"].read(1), torch.tensor([3.0, 4.0, 5.0]))
    assert tensors["second"].shape == (3, 2, 4)
    assert torch.equal(tensors["second"].read(2), torch.ones(2, 4))


READABLE = [kind for kind in GGMLQuantizationType if is_readable(kind)]


@pytest.mark.parametrize("kind", READABLE, ids=lambda kind: kind.name)
def test_types_of_tensors(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    """Bytes of a type that `gguf` cannot encode are drawn at random; halves among them may be no numbers, which must
    be reported.
    """
    block, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(0)
    exact = generator.normal(size=(4, 2 * max(block, 32))).astype(np.float32)
    try:
        stored = gguf.quants.quantize(exact, kind)
    except NotImplementedError:
        stored = generator.integers(0, 0x3C, size=(4, 2 * size), dtype=np.uint8)  # no half of these is infinite
    writer = GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("t", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = GgufFile.open(tmp_path / "a.gguf").tensors["t"]
    wanted = torch.from_numpy(gguf.quants.dequantize(stored, kind).copy())
    assert tensor.kind == kind
    assert torch.equal(tensor.read(), wanted)
    assert torch.equal(tensor.read(3), wanted[3])


def test_the_types_that_people_have_are_readable() -> None:
    common = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4"
    assert [name for name in common.split() if not is_readable(GGMLQuantizationType[name])] == []
    assert not is_readable(GGMLQuantizationType.Q8_K)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        GgufFile.open(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path.parent) in message
    return message


def test_files_that_are_none(good: Path, tmp_path: Path) -> None:
    assert "does not exist: give a GGUF file" in refusal(tmp_path / "none.gguf")
    assert "is a folder, not a regular file" in refusal(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    assert "is not a GGUF file: it does not start with GGUF" in refusal(tmp_path / "empty")
    (tmp_path / "model.safetensors").write_bytes(b"\x80" * 64)
    assert "is not a GGUF file" in refusal(tmp_path / "model.safetensors")
    data = good.read_bytes()
    (tmp_path / "old").write_bytes(data[:4] + b"\x01\0\0\0" + data[8:])
    assert "GGUF of version 1; versions 2 and 3 are read: convert it again" in refusal(tmp_path / "old")
    (tmp_path / "big").write_bytes(data[:4] + b"\0\0\0\x03" + data[8:])
    assert "(big-endian?)" in refusal(tmp_path / "big")


def test_a_file_that_is_cut_short_or_shrinks(good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(4, len(data)):
        path.write_bytes(data[:length])
        if length <= len(data) - 32:  # the last bytes only fill up
            assert "is cut short" in refusal(path)
    assert "second should end at byte" in refusal_of(path, data[: len(data) - 40])

    path = write_file(tmp_path / "a.gguf")
    tensor = GgufFile.open(path).tensors["second"]
    path.write_bytes(path.read_bytes()[: tensor.offset + 8])
    with pytest.raises(ModelError, match="became shorter while it was read"):
        tensor.read()
    path.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        tensor.read()


def refusal_of(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return refusal(path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"a.whole\0\0\0\0", b"a.whole\x63\0\0\0", "a value of type 99"),
        (b"a.wholes\x09\0\0\0", b"a.wholes\x09\0\0\0\x09\0\0\0", "a list of lists"),
        (b"a.whole\0", b"a.text\xff\0", "not UTF-8"),
        (b"a.empty", b"a.emp\n\x1b", r"it has the name 'a.emp\n\x1b'"),
        (b"first\x02\0\0\0", b"first\x05\0\0\0", "first has 5 dimensions"),
        (b"first\x02\0\0\0\x03", b"first\x02\0\0\0\0", "first has the shape [2, 0]"),
        (b"second", b"second", "good"),
    ],
)
def test_tables_that_make_no_sense(good: Path, tmp_path: Path, old: bytes, new: bytes, words: str) -> None:
    data = good.read_bytes()
    assert old in data
    (tmp_path / "bad.gguf").write_bytes(data.replace(old, new, 1))
    if words == "good":
        assert GgufFile.open(tmp_path / "bad.gguf").tensors.keys() == {"first", "second"}
    else:
        assert words in refusal(tmp_path / "bad.gguf")


def test_names_that_stand_there_twice_and_numbers_that_are_none(good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    assert "'a.whole' stands there twice" in refusal_of(tmp_path / "keys", data.replace(b"a.empty", b"a.whole", 1))
    twice = data.replace(b"\x05\0\0\0\0\0\0\0first", b"\x06\0\0\0\0\0\0\0second", 1)
    assert "second stands there twice" in refusal_of(tmp_path / "tensors", twice)

    writer = GGUFWriter(tmp_path / "nan.gguf", "llama")
    writer.add_tensor("t", np.array([[1.0, np.nan]], dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="t has values that are not numbers: fetch it again"):
        GgufFile.open(tmp_path / "nan.gguf").tensors["t"].read()


def test_one_of_several_files(good: Path, tmp_path: Path) -> None:
    for count, name, words in (
        (3, "model.gguf", "is one of 3 files, but its name does not show it"),
        (3, "model-00001-of-00002.gguf", "is one of 3 files, but its name does not show it"),
        (2, "model-00001-of-00002.gguf", "model-00002-of-00002.gguf does not exist"),
        (0, "model.gguf", "split.count is 0"),
    ):
        writer = GGUFWriter(tmp_path / name, "llama")
        writer.add_uint16("split.count", count)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        assert words in refusal(tmp_path / name)


@given(st.data())
def test_made_up_bytes_are_read_or_refused(good: Path, data: st.DataObject) -> None:
    original = bytearray(good.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(original) - 1))
        original[at] = data.draw(st.integers(0, 255))
    path = good.parent / "fuzzed.gguf"
    path.write_bytes(original)
    try:
        file = GgufFile.open(path)
    except ModelError:
        return
    assert all(tensor.offset + tensor.size_bytes <= len(original) for tensor in file.tensors.values())
