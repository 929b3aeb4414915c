"""Model folders travel to hosts that do not have them."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.cluster import model_parcels
from serving.cluster.gcs_store import SPACE, GcsStore
from serving.cluster.identity import found_identity
from serving.cluster.model_parcels import PREFIX, publish_model, with_model_here
from serving.cluster.session import SystemSession
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.errors import ModelError
from serving.model.parcel import lacks_weights
from tests.cluster.gcs_fake import FakeGcs

STORYTELLER = Path(__file__).parents[2] / "deploy" / "models" / "storyteller"


@pytest.fixture
def gcs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGcs:
    monkeypatch.setattr(model_parcels, "deployed_session", lambda name: SystemSession(name, tmp_path / name, ""))
    return FakeGcs()


def config_of(path: Path) -> ServeConfig:
    return ServeConfig(ModelConfig(path, name="m"))


def published(gcs: FakeGcs, path: Path) -> GcsStore:
    """The store in which the bundled model is published as if its folder were `path`."""
    store = GcsStore(lambda: gcs)
    found_identity(store, session="abc123")
    publish_model(store, ModelConfig(STORYTELLER))
    gcs.kept = {
        key: value.replace(str(STORYTELLER).encode(), str(path).encode()) if key[1].endswith(b"list") else value
        for key, value in gcs.kept.items()
    }
    return store


def test_a_folder_that_is_here_costs_no_question(gcs: FakeGcs) -> None:
    gcs.error = RuntimeError("asked")
    config = config_of(STORYTELLER)
    assert with_model_here(config, GcsStore(lambda: gcs)) is config


def test_a_folder_that_is_elsewhere_is_made_once(gcs: FakeGcs, tmp_path: Path) -> None:
    store = published(gcs, Path("/models/m"))
    config = config_of(Path("/models/m"))
    found = with_model_here(config, store)
    assert found.model.path.parent == tmp_path / "abc123"
    assert lacks_weights(found.model.path)
    assert found.model.tokenizer_folder == found.model.path
    assert replace(found, model=config.model) == config
    assert with_model_here(config, store) == found
    assert len(list(found.model.path.parent.iterdir())) == 1


def test_a_snapshot_without_its_weights_counts_only_if_no_parcel_travels(gcs: FakeGcs, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    config = config_of(snapshot)
    assert with_model_here(config, GcsStore(lambda: gcs)) is config, "simulated NPUs need no more"
    assert with_model_here(config, published(gcs, snapshot)).model.path.parent == tmp_path / "abc123"
    (snapshot / "model.safetensors").touch()
    assert with_model_here(config, published(gcs, snapshot)) is config


def test_what_nobody_published_is_named_with_the_host(gcs: FakeGcs) -> None:
    with pytest.raises(ModelError, match=r"host \S+ has no /models/m, and no host has published it"):
        with_model_here(config_of(Path("/models/m")), GcsStore(lambda: gcs))


def test_a_damaged_parcel_is_not_used(gcs: FakeGcs) -> None:
    store = published(gcs, Path("/models/m"))
    (part,) = (key for key in gcs.kept if key[1].endswith(b"/0000"))
    gcs.kept[part] = gcs.kept[part][::-1]
    with pytest.raises(ModelError, match="arrived damaged"):
        with_model_here(config_of(Path("/models/m")), store)


def test_a_large_parcel_goes_in_parts_and_the_last_deployments_goes(
    gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs.kept[SPACE, f"{PREFIX}older/0000".encode()] = b"old"
    gcs.kept[SPACE, b"other"] = b"kept"
    monkeypatch.setattr(model_parcels, "LARGEST_VALUE_BYTES", 20_000)
    store = published(gcs, Path("/models/m"))
    assert len(store.keys(PREFIX)) > 3
    assert f"{PREFIX}older/0000" not in store.keys(PREFIX)
    assert store.get("other") == b"kept"
    assert lacks_weights(with_model_here(config_of(Path("/models/m")), store).model.path)
