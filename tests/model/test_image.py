"""The image format: keys, versions, and invalid manifests."""

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from serving.errors import ModelError
from serving.model import image
from serving.model.architecture import Architecture
from serving.model.config import read_architecture
from serving.model.forms import TorchForms
from serving.model.image import FORMAT, Image, ImageEntry, Manifest, address_of, encode_start, image_key
from serving.model.native.library import load
from serving.model.native.panels import PanelForms
from serving.model.parcel import model_version
from tests.model.random_checkpoint import write_random_checkpoint

GOOD = ImageEntry("a", "float32", (4, 8), 0, 128)


def manifest(*entries: ImageEntry, layouts: tuple[bytes, ...] = (), tensor_bytes: int = 256) -> Manifest:
    return Manifest("config", "float32", (0, 0), (), entries, layouts, tensor_bytes)


def aligned(content: bytes, skip: int = 0) -> memoryview:
    """The bytes in memory, `skip` bytes after a multiple of 64."""
    memory = memoryview(bytearray(len(content) + 128))
    start = -address_of(memory) % 64 + skip
    memory[start : start + len(content)] = content
    return memory[start : start + len(content)]


def whole(found: Manifest) -> bytes:
    return encode_start(found) + bytes(found.tensor_bytes)


def test_an_image_gives_back_what_was_written() -> None:
    second = ImageEntry("b", "bfloat16", (3,), 128, 6)
    memory = aligned(whole(manifest(GOOD, second)))
    memory[-256 + 128 : -256 + 134] = b"abcdef"
    image = Image(memory)
    assert image.entry("b") == second
    assert bytes(image.bytes_of(second)) == b"abcdef"
    with pytest.raises(ModelError, match="lacks c"):
        image.entry("c")
    assert Image(aligned(whole(manifest(GOOD)) + b"more")).entry("a") == GOOD, "the memory may be longer"


@pytest.mark.parametrize(
    "bad",
    [
        msgspec.structs.replace(GOOD, dtype="nonsense"),
        msgspec.structs.replace(GOOD, dtype="load"),  # a name of torch's, but no dtype
        msgspec.structs.replace(GOOD, nbytes=64),
        msgspec.structs.replace(GOOD, nbytes=0, shape=(0, 8)),
        msgspec.structs.replace(GOOD, offset=32),
        msgspec.structs.replace(GOOD, offset=-64),
        msgspec.structs.replace(GOOD, offset=192),
        msgspec.structs.replace(GOOD, shape=(4, 9)),
        msgspec.structs.replace(GOOD, layout=1),
        msgspec.structs.replace(GOOD, layout=-2),
        msgspec.structs.replace(GOOD, layout=0, nbytes=64),
        msgspec.structs.replace(GOOD, layout=0, shape=(32,)),
        msgspec.structs.replace(GOOD, bias="a.bias"),
        msgspec.structs.replace(GOOD, scale="a.scale"),
    ],
)
def test_entries_that_cannot_be_right(bad: ImageEntry) -> None:
    with pytest.raises(ModelError, match=r"a of a model image has dtype|the position of a"):
        Image(aligned(whole(manifest(bad, layouts=(b"x",)))))


def test_images_that_are_none() -> None:
    good = whole(manifest(GOOD))
    cases = {
        "has no header": good[:20],
        "not a model image of format": b"X" + good[1:],
        "damaged": good[:50] + b"\xff" + good[51:],
        "cut off": good[:-1],
    }
    for message, content in cases.items():
        with pytest.raises(ModelError, match=message):
            Image(aligned(content))
    other = bytearray(good)
    other[8] = FORMAT + 1
    with pytest.raises(ModelError, match=f"format {FORMAT + 1}"):
        Image(aligned(bytes(other)))
    with pytest.raises(ModelError, match="multiple of 64"):
        Image(aligned(good, skip=8))


def test_a_manifest_of_another_shape_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stranger(msgspec.Struct, array_like=True):
        tensor_bytes: int

    with pytest.raises(ModelError, match="cannot be read"):
        Image(aligned(encode_start(Stranger(0))))  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["broken text", "endless nesting"])
def test_a_manifest_that_cannot_be_decoded_is_refused(damage: str) -> None:
    """msgspec raises another error for these than for other malformed data; a valid checksum does not imply valid
    bytes.
    """
    body = msgspec.msgpack.encode(manifest(GOOD))
    if damage == "broken text":
        body = body.replace(b"config", b"\xff" * 6)
    else:
        body = bytes([body[0] + 1]) + body[1:] + b"\x91" * 100_000  # one more field than this version has
    header = image._HEADER.pack(image.MAGIC, FORMAT, zlib.crc32(body), len(body), 0)
    with pytest.raises(ModelError, match="cannot be read") as refused:
        Image(aligned(header + body))
    assert isinstance(refused.value.__cause__, UnicodeDecodeError if damage == "broken text" else RecursionError)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_random_checkpoint(tmp_path, shards=2)


def test_a_version_follows_the_files(folder: Path) -> None:
    before = model_version(folder)
    assert model_version(folder) == before
    (folder / "tokenizer.json").write_text("{}")
    assert model_version(folder) == before
    weights = next(iter(sorted(folder.glob("*.safetensors"))))
    facts = weights.stat()
    os.utime(weights, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1_000_000_000))
    assert model_version(folder) == before
    config = folder / "config.json"
    config.write_text(config.read_text() + " ")
    assert model_version(folder) != before
    config.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        model_version(folder)


@pytest.fixture
def threads() -> Iterator[None]:
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


@pytest.mark.usefixtures("threads")
def test_a_key_names_all_that_bytes_depend_on(folder: Path, tmp_path: Path) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    config = read_architecture(folder)
    other = read_architecture(write_random_checkpoint(tmp_path / "other", hidden_size=32))
    library = load()
    assert library is not None

    def key(version: str, dtype: torch.dtype, device: torch.device, of: Architecture = config) -> str:
        return image_key(of, version, str(dtype), device.type, TorchForms(device).fingerprint())

    torch.set_num_threads(1)
    keys = [
        key("1", torch.float32, cpu),
        key("2", torch.float32, cpu),
        key("1", torch.bfloat16, cpu),
        key("1", torch.float32, cuda),
        key("1", torch.float32, cpu, other),
        image_key(config, "1", "float32", "cpu", PanelForms(library).fingerprint()),
    ]
    assert key("1", torch.float32, cpu) == keys[0]
    torch.set_num_threads(2)
    keys.append(key("1", torch.float32, cpu))
    assert len(set(keys)) == len(keys)
    assert "@1/" in keys[0]
    assert torch.__version__ in keys[0]
    assert image_key(config, "1", "float32", "cpu", PanelForms(library).fingerprint()) == keys[5]
    assert torch.__version__ not in keys[5]
