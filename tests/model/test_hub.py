"""Models of the Hugging Face Hub: fetched files, and one line for every failure."""

import errno
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.file_download
import pytest
from huggingface_hub import constants

from serving.config.model import HubReference
from serving.errors import ConfigError, ModelError
from serving.model import hub as hub_module
from serving.model.checkpoint import Checkpoint
from serving.model.config import read_architecture
from serving.model.hub import HubFolder, Part, fetch
from serving.model.weight_files import is_partial
from tests.fakes.hub import NAME, FakeHub, fake_hub
from tests.model.random_checkpoint import write_random_checkpoint

SERVED = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
}
ALIEN = ("pytorch_model.bin", "modeling_random.py", "README.md", "consolidated.safetensors", "tokenizer.model")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint in two files, with other files that repositories have."""
    folder = write_random_checkpoint(tmp_path_factory.mktemp("repository"), shards=2)
    for name in ALIEN:
        (folder / name).write_bytes(b"not to be asked for")
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A Hub at the library's address, and an empty cache. Retries of the library do not wait."""
    with fake_hub() as found:
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        template = f"{found.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.file_download, "time", SimpleNamespace(sleep=lambda _: None))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield found


def fetched(part: Part = "all", name: str = NAME) -> HubFolder:
    """The model, fetched without output."""
    reference = HubReference.parse(name)
    assert reference is not None
    return fetch(reference, lambda _: None, part)


def refusal(part: Part = "all", name: str = NAME) -> str:
    """Error line of a fetch."""
    with pytest.raises((ModelError, ConfigError)) as caught:
        fetched(part, name)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_a_model_is_fetched_with_what_serving_reads_and_nothing_else(hub: FakeHub, checkpoint: Path) -> None:
    commit = hub.add(checkpoint)
    told: list[str] = []
    found = fetch(HubReference(NAME), told.append)
    assert hub.files_asked == SERVED
    assert {path.name for path in found.path.iterdir()} == SERVED
    assert (found.commit, found.path.name) == (commit, commit)
    (line,) = told
    assert f"model {NAME}: commit {commit}; fetching " in line
    assert str(found.path) in line
    assert read_architecture(found.path) == read_architecture(checkpoint)
    assert Checkpoint(found.path).names == Checkpoint(checkpoint).names


def test_a_second_start_asks_only_which_commit_it_is(hub: FakeHub, checkpoint: Path) -> None:
    commit = hub.add(checkpoint)
    first = fetched()
    hub.asked.clear()
    told: list[str] = []
    assert fetch(HubReference(NAME), told.append) == first
    assert hub.asked == [f"GET api/models/{NAME}"]
    assert told == [f"model {NAME}: commit {commit}, in {first.path}"]


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: FakeHub, checkpoint: Path) -> None:
    main, tag = hub.add(checkpoint), hub.add(checkpoint, "refs/pr/1")
    assert fetched(name=f"{NAME}@refs/pr/1").commit == tag
    assert fetched(name=f"{NAME}@{main}").commit == main
    assert f"{NAME} has no revision v9: {hub.url}/{NAME}/tree/main lists" in refusal(name=f"{NAME}@v9")
    assert not [path for path in hub.asked if "/resolve/" in path and main not in path and tag not in path]


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("config", {"config.json", "generation_config.json"}),
        ("text", {name for name in SERVED if not name.endswith(".safetensors")}),
    ],
)
def test_a_command_that_reads_less_fetches_less(hub: FakeHub, checkpoint: Path, part: Part, names: set[str]) -> None:
    hub.add(checkpoint)
    folder = fetched(part).path
    assert hub.files_asked == names
    assert is_partial(folder)
    assert not is_partial(fetched().path)


def test_offline_the_cache_is_enough_if_it_has_everything(
    hub: FakeHub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hub.add(checkpoint)
    found = fetched()
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetched() == found == fetched(name=f"{NAME}@{commit}")
    assert not hub.asked
    next(found.path.glob("model-00002*")).unlink()
    assert re.search("has not all of test/random, .*HF_HUB_OFFLINE forbids .*: unset it, or give a folder", refusal())


def test_without_a_network_the_cache_is_enough_too(
    hub: FakeHub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hub.add(checkpoint)
    found = fetched()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert fetched() == found == fetched(name=f"{NAME}@{commit}")
    (found.path / "tokenizer.json").unlink()
    shutil.rmtree(found.path)
    assert re.search("cannot be reached, nor has the cache .* all of", refusal())


@pytest.mark.usefixtures("hub")
def test_without_a_network_and_cache_a_folder_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    line = refusal()
    assert line.startswith('there is no folder "test/random", and http://127.0.0.1:1 cannot be reached (ConnectError')
    assert line.endswith("give a folder, or start once where there is a network")


@pytest.mark.usefixtures("hub")
def test_names_that_the_hub_does_not_have_are_said() -> None:
    line = refusal(name="test/nothing")
    assert re.search(r'no folder "test/nothing", and http://.* shows no model test/nothing: correct .*HF_TOKEN', line)
    assert "a..b/c is no name of a model on the Hub: correct it, or give a folder" in refusal(name="a..b/c")


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (401, {"X-Error-Message": "Invalid username or password."}, "shows no model test/random: .*HF_TOKEN"),
        (403, {"X-Error-Code": "GatedRepo"}, "accept its licence at http://.*/test/random, and set HF_TOKEN"),
        (403, {}, "accept its licence at"),
        (429, {}, "returned 429 for test/random: try again later"),
        (503, {}, "returned 503"),
    ],
)
def test_a_refusal_says_what_to_do(
    hub: FakeHub, checkpoint: Path, status: int, headers: dict[str, str], words: str
) -> None:
    hub.add(checkpoint)
    hub.refusal = status, headers
    assert re.search(words, refusal())


def test_a_gated_model_is_fetched_with_a_token(hub: FakeHub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(checkpoint)
    hub.token = "hf_secret"
    assert "accept its licence" in refusal()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert fetched().path.is_dir()


def test_a_connection_that_breaks_is_taken_up_where_it_broke(hub: FakeHub, checkpoint: Path) -> None:
    hub.add(checkpoint)
    hub.cut["model-00001-of-00002.safetensors"] = 2
    assert Checkpoint(fetched().path).names == Checkpoint(checkpoint).names


def test_a_file_that_never_comes_whole_is_said_and_a_later_start_fetches_only_the_rest(
    hub: FakeHub, checkpoint: Path
) -> None:
    hub.add(checkpoint)
    hub.cut["model-00002-of-00002.safetensors"] = 1000
    assert re.search(
        "test/random was incomplete, or changed during the download .*: start again; complete files", refusal()
    )
    hub.cut.clear()
    hub.asked.clear()
    fetched()
    assert hub.files_asked == {"model-00002-of-00002.safetensors"}


def test_a_branch_that_moves_meanwhile_changes_nothing(hub: FakeHub, checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    hub.moves_to = hub.add(other, "later")
    commit = hub.add(checkpoint)
    assert fetched().commit == commit


def test_a_file_of_another_commit_is_refused(hub: FakeHub, checkpoint: Path) -> None:
    commit = hub.add(checkpoint)
    hub.answers_as = "f" * 40
    assert f"changed during the download: config.json is from commit ffffffffffff instead of {commit[:12]}" in refusal()


def test_a_file_that_grew_is_refused(hub: FakeHub, checkpoint: Path) -> None:
    hub.add(checkpoint)
    hub.longer["model-00001-of-00002.safetensors"] = 7
    assert re.search("was incomplete, or changed during the download .*Consistency check failed", refusal())


def test_a_damaged_copy_is_named(hub: FakeHub, checkpoint: Path) -> None:
    hub.add(checkpoint)
    blob = (fetched().path / "model-00001-of-00002.safetensors").resolve()
    blob.write_bytes(b"short")
    assert "has 5 bytes and" in refusal()
    assert f"remove {blob} and start again" in refusal()


def test_a_model_in_another_form_is_refused_before_anything_large_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    hub.add(folder)
    assert re.search(r"has no \*\.safetensors, only pytorch_model\.bin: choose", refusal())
    assert "pytorch_model.bin" not in hub.files_asked


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_model_without_what_serving_needs_is_refused_at_once(hub: FakeHub, tmp_path: Path, name: str) -> None:
    folder = write_random_checkpoint(tmp_path / "lacking")
    (folder / name).unlink()
    hub.add(folder)
    assert f"{NAME} has no {name}, which serving needs" in refusal()
    assert not hub.files_asked


def test_an_architecture_that_is_not_served_is_refused_before_its_weights_are_fetched(
    hub: FakeHub, checkpoint: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "alien")
    (folder / "config.json").write_text('{"model_type": "mamba"}')
    hub.add(folder)
    assert "mamba" in refusal()
    assert not [name for name in hub.files_asked if name.endswith(".safetensors")]


@pytest.mark.parametrize("small_files", [False, True])
def test_a_check_may_refuse_a_model_before_anything_of_it_is_fetched_and_before_its_weights(
    hub: FakeHub, checkpoint: Path, small_files: bool
) -> None:
    def check(folder: Path | None, stored: int) -> None:
        assert folder is None or (folder / "tokenizer.json").is_file()
        if (folder is not None) == small_files:
            raise ConfigError(f"{stored} is too much")

    hub.add(checkpoint)
    stored = sum(path.stat().st_size for path in checkpoint.glob("model-*.safetensors"))
    with pytest.raises(ConfigError, match=f"^{stored} is too much$"):
        fetch(HubReference(NAME), lambda _: None, check=check)
    assert bool(hub.files_asked) == small_files
    assert not [name for name in hub.files_asked if name.endswith(".safetensors")]


def test_an_index_of_files_that_are_not_there_is_named(hub: FakeHub, checkpoint: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "lacking")
    (folder / "model-00002-of-00002.safetensors").unlink()
    hub.add(folder)
    assert "has no model-00002-of-00002.safetensors, which its model.safetensors.index.json names" in refusal()


def test_a_disk_that_is_too_small_is_said_before_it_is_full(
    hub: FakeHub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(checkpoint)
    room = sum(path.stat().st_size for path in checkpoint.glob("model-*.safetensors")) - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=room))
    assert re.search("takes .* more, and the disk of .* has .* left: make room, or set HF_HOME", refusal())
    assert not [name for name in hub.files_asked if name.endswith(".safetensors")]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk of .*/cache is full: make room, or set HF_HOME"),
        (PermissionError(errno.EACCES, "Permission denied", "/hub"), "/hub cannot be written .*: set HF_HOME"),
    ],
)
def test_a_disk_that_fails_meanwhile_is_a_line(
    hub: FakeHub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, words: str
) -> None:
    def fails(*_: object, **__: object) -> str:
        raise error

    hub.add(checkpoint)
    monkeypatch.setattr(hub_module, "hf_hub_download", fails)
    assert re.search(words, refusal())
