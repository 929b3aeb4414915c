"""Which texts name a model of the Hugging Face Hub, and which a folder."""

from pathlib import Path

import pytest

from serving.config import load_config
from serving.config.model import HubReference, folder_name, hub_reference
from tests.config.toml_file import checkpoint, load, write

HUB = '[model]\npath = "org/name@v1"\n'


@pytest.mark.parametrize(
    ("text", "repository", "revision"),
    [
        ("org/name", "org/name", None),
        ("org/name@v1.0", "org/name", "v1.0"),
        ("Org-1/na_me.v2@refs/pr/3", "Org-1/na_me.v2", "refs/pr/3"),
    ],
)
def test_a_name_on_the_hub_has_two_parts_and_may_have_a_revision(
    text: str, repository: str, revision: str | None, tmp_path: Path
) -> None:
    found = hub_reference(text, tmp_path)
    assert found == HubReference(repository, revision)
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        "name",
        "./org/name",
        "../org/name",
        "/org/name",
        "~/org",
        "org/name/more",
        "org/",
        "org/name@",
        "org/na me",
        ".a/b",
    ],
)
def test_anything_else_names_a_folder(text: str, tmp_path: Path) -> None:
    assert hub_reference(text, tmp_path) is None


def test_a_folder_that_is_there_wins(tmp_path: Path) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert hub_reference("org/name", tmp_path) is None
    assert hub_reference("org/name@v1", tmp_path) == HubReference("org/name", "v1")


def test_a_file_may_name_a_model_of_the_hub(tmp_path: Path) -> None:
    model = load(tmp_path, "", model=HUB).model
    assert (model.hub, model.name) == (HubReference("org/name", "v1"), "org/name")
    named = load(tmp_path, "", model=f'{HUB}name = "mine"\n').model
    assert named.name == "mine"


def test_a_files_own_folder_of_that_name_wins(tmp_path: Path) -> None:
    (tmp_path / "org").mkdir()
    folder = checkpoint(tmp_path / "org", "name@v1")
    model = load(tmp_path, "", model=HUB).model
    assert (model.path, model.hub, model.name) == (folder, None, "name@v1")


def test_a_folder_is_told_from_a_model_by_a_dot_before_it(tmp_path: Path) -> None:
    model = load(tmp_path, "", model='[model]\npath = "./org/name"\n').model
    assert (model.path, model.hub) == (tmp_path / "org" / "name", None)


def test_the_command_line_looks_for_folders_where_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, here = tmp_path / "beside", tmp_path / "here"
    for place in (beside, here):
        (place / "org").mkdir(parents=True)
    checkpoint(beside / "org", "name")
    file = write(beside, "")
    monkeypatch.chdir(here)
    assert load_config(file, model="org/name").model.hub == HubReference("org/name")
    assert load_config(file, settings=["model.path=org/name"]).model.path == beside / "org" / "name"
    own = checkpoint(here / "org", "name")
    assert load_config(file, model="org/name").model.path == own


def test_a_folder_of_the_hubs_cache_has_the_models_name() -> None:
    assert folder_name(Path("/hf/hub/models--org--na--me/snapshots/abc")) == "org/na--me"
    assert folder_name(Path("/models/snapshots/abc")) == "abc"
