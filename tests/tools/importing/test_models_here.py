"""Models on this machine by name: choosing, listing and removing them."""

from pathlib import Path

import pytest

from serving.cli import main
from serving.errors import ConfigError
from serving.tools.importing.models_here import choose_model, models_here, remove_model
from serving.tools.importing.smollm2 import smollm2_folder


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches of this user."""
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def put(folder: Path) -> Path:
    """A checkpoint folder of 12 bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(10))
    return folder


def put_hub(caches: Path) -> Path:
    """A model of the Hub as its library keeps it: a snapshot of links to files with content."""
    repository = caches / "huggingface" / "hub" / "models--org--name"
    snapshot = put(repository / "snapshots" / "abc")
    (repository / "blobs").mkdir()
    (snapshot / "model.safetensors").rename(repository / "blobs" / "f00")
    (snapshot / "model.safetensors").symlink_to(repository / "blobs" / "f00")
    return snapshot


def told(line: str) -> None:
    """Nothing slow may happen."""
    raise AssertionError(line)


def test_names_and_folders(tmp_path: Path) -> None:
    own = put(smollm2_folder().with_name("own"))
    assert choose_model("own", told).path == str(own)
    assert choose_model("storyteller", told).path.endswith("deploy/models/storyteller")
    assert choose_model(str(own), told).path == str(own)
    assert choose_model("org/name@main", told).path == "org/name@main", "it is not fetched yet"
    assert choose_model("/no/such/folder", told).path == "/no/such/folder", "its reader says so"


@pytest.mark.parametrize("text", ["smollm2", "smollm2-135m-instruct"])
def test_smollm2_brings_the_format_of_its_tool_calls(text: str) -> None:
    folder = put(smollm2_folder())
    for one in (choose_model(text, told), choose_model(str(folder), told)):
        assert (one.path, one.settings) == (str(folder), ("model.tools=hermes",))


def test_a_name_of_nothing_lists_those_there_are() -> None:
    put(smollm2_folder().with_name("own"))
    with pytest.raises(ConfigError, match="no model onw: give a checkpoint folder, a GGUF file, org/name, or smollm2"):
        choose_model("onw", told)
    with pytest.raises(ConfigError, match="cannot be read"):
        choose_model("missing.gguf", told)


def test_list_and_removal(caches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, snapshot = put(smollm2_folder().with_name("own")), put_hub(caches)
    listed = {one.name: (one.origin, one.size) for one in models_here()}
    assert listed["own"] == ("imported", 12)
    assert listed["org/name"] == ("hub", 10)
    assert listed["storyteller"][0] == "bundled"
    assert "deepseek-r1-shape" not in listed, "it has no weights to serve"
    with pytest.raises(ConfigError, match="is served now"):
        remove_model("org/name", [snapshot])
    assert main(["rm", "org/name"]) == 0
    assert not (caches / "huggingface" / "hub" / "models--org--name").exists()
    assert main(["rm", "own"]) == 0
    assert not own.exists()
    capsys.readouterr()
    for name, said in (("storyteller", "belongs to the package"), ("own", "there is no model 'own' here")):
        assert main(["rm", name]) == 2
        assert said in capsys.readouterr().err
