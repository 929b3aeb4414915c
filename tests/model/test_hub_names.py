"""Names from a mirror of the Hub: none becomes a path on the disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download

from serving.config.model import HubReference
from serving.errors import ModelError
from serving.model.hub import fetch, names_checked
from tests.fakes.hub import NAME, FakeHub, fake_hub
from tests.model.random_checkpoint import write_random_checkpoint

DIGEST = "0123456789abcdef" * 4
OUTSIDE = "../../../../outside/planted"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint."""
    return write_random_checkpoint(tmp_path_factory.mktemp("repository"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A mirror at the library's address, and a cache in a folder whose files are all known."""
    (tmp_path / "outside").mkdir()
    with fake_hub() as found:
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        template = f"{found.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield found


def written(tmp_path: Path) -> list[Path]:
    """Files around the cache except its references, which hold only commits."""
    return [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "refs"]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("ETag", f'"{OUTSIDE}"'),
        ("ETag", "/tmp/planted"),
        ("ETag", f'W/"{DIGEST}/../{OUTSIDE}"'),
        ("ETag", '"5f3a-61b"'),
        ("ETag", '""'),
        ("ETag", f'"{DIGEST}0"'),
        ("X-Linked-ETag", f'"{OUTSIDE}"'),
        ("X-Repo-Commit", OUTSIDE),
        ("X-Repo-Commit", ".."),
        ("X-Xet-Hash", OUTSIDE),
    ],
)
def test_a_header_that_would_become_a_path_is_refused_before_anything_is_written(
    hub: FakeHub, checkpoint: Path, tmp_path: Path, header: str, value: str
) -> None:
    hub.add(checkpoint)
    hub.headers[header] = value
    with pytest.raises(
        ModelError, match=rf"calls its file .* \({header.lower()}\), which is not a digest .*HF_ENDPOINT"
    ):
        fetch(HubReference(NAME), lambda _: None)
    assert not written(tmp_path)
    assert not list((tmp_path / "outside").iterdir())


def test_a_file_that_is_not_there_plants_none(hub: FakeHub, checkpoint: Path, tmp_path: Path) -> None:
    """The library records a 404 in a folder of the commit that the response names."""
    commit = hub.add(checkpoint)
    hub.headers["X-Repo-Commit"] = OUTSIDE
    with names_checked(), pytest.raises(ModelError, match="x-repo-commit"):
        hf_hub_download(NAME, "absent.json", revision=commit)
    assert not written(tmp_path)


@pytest.mark.parametrize("commit", [OUTSIDE, "main", "f" * 39, "g" * 40])
def test_a_commit_that_is_no_digest_is_refused(hub: FakeHub, checkpoint: Path, tmp_path: Path, commit: str) -> None:
    hub.add(checkpoint)
    hub.listed_commit = commit
    with pytest.raises(ModelError, match=r"is at commit .*, which is not a digest"):
        fetch(HubReference(NAME), lambda _: None)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("etag", [f'"{"a" * 40}"', f'W/"{DIGEST}"', DIGEST.upper()])
def test_digests_in_every_form_are_names(hub: FakeHub, checkpoint: Path, tmp_path: Path, etag: str) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    hub.add(folder)
    hub.headers["ETag"] = etag
    assert fetch(HubReference(NAME), lambda _: None, "config").path.is_dir()


def test_a_redirect_s_own_tag_names_no_file(hub: FakeHub, checkpoint: Path) -> None:
    """Web servers tag the empty pages of redirects arbitrarily; the file's name comes with the last response."""
    hub.add(checkpoint)
    hub.redirects = {"ETag": 'W/"0-2jmj7l5rSw0yVb/vlWAYkK/YBwk"'}
    assert fetch(HubReference(NAME), lambda _: None, "config").path.is_dir()
    hub.redirects = {"X-Linked-ETag": OUTSIDE}
    with pytest.raises(ModelError, match="x-linked-etag"):
        fetch(HubReference(NAME), lambda _: None, "all")
