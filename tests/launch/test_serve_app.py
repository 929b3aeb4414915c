"""The builder for Serve's YAML: its arguments, and that they contain no secret."""

from pathlib import Path
from typing import Any

import pytest

from serving.cluster.gcs_store import GcsStore
from serving.cluster.identity import read_secrets
from serving.cluster.nodes import ON_HEAD_NODE
from serving.config.load import load_config
from serving.errors import ConfigError
from serving.launch import serve_app
from serving.launch.app import _instances
from serving.launch.hosts import Host
from serving.launch.serve_app import app
from tests.cluster.gcs_fake import FakeGcs
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.shapes import SPARSE

HOSTS = [Host("left", "10.0.0.1", "aa", 8, 1024, head=True)]


@pytest.fixture
def gcs() -> FakeGcs:
    return FakeGcs()


@pytest.fixture
def built(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Arguments of `application`; the control store is a fake one."""
    calls: list[Any] = []
    fakes = {
        "GcsStore": lambda: GcsStore(lambda: gcs),
        "living_hosts": lambda: HOSTS,
        "application": lambda *given: calls.append(given[:3]),
        "_dashboard_url": lambda: "http://10.0.0.1:8265",
    }
    for name, other in fakes.items():
        monkeypatch.setattr(serve_app, name, other)
    return calls


def test_the_configuration_is_the_files_with_its_settings_on_the_clusters_nodes(gcs: FakeGcs, built: list[Any]) -> None:
    app({"config": "deploy/hosts.toml", "set": ["gateway.port=9000"]})
    app({"config": "deploy/hosts.toml"})
    (config, session, url), (again, same, _) = built
    assert (config.gateway.port, again.gateway.port) == (9000, 8000)
    assert [node.name for node in config.cluster.nodes] == ["left"]
    assert session == same
    assert session.folder == Path(f"/tmp/cloudmatrix.{session.name}")
    assert url == "http://10.0.0.1:8265"
    assert len(read_secrets(GcsStore(lambda: gcs))) == 1


def test_secrets_may_come_from_a_file_on_the_hosts(gcs: FakeGcs, built: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text(f"{'a' * 32}\n\n{'b' * 40}\n")
    app({"config": "deploy/hosts.toml", "secret_file": str(file)})
    assert read_secrets(GcsStore(lambda: gcs)) == ("a" * 32, "b" * 40)
    assert len(built) == 1


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("args", "line"),
    [
        ({}, "give config: FILE"),
        ({"config": "deploy/hosts.toml", "set": "a.b=1"}, "give config: FILE, and set as a list"),
        ({"config": "deploy/hosts.toml", "sett": []}, "unknown sett; known are config, set, secret_file"),
        ({"config": "deploy/no.toml"}, "no configuration file"),
        ({"config": "deploy/hosts.toml", "set": ["decode.replicas=99"]}, "the cluster offers 8"),
        ({"config": "deploy/hosts.toml", "secret_file": "/nowhere"}, "secret_file /nowhere cannot be read"),
        ({"config": "deploy/hosts.toml", "secret_file": __file__}, "at least one line of at least 32 characters"),
    ],
)
def test_a_mistake_is_one_line(args: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        app(args)


def test_contexts_longer_than_are_computed_are_a_line_of_the_application(built: list[Any], tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, **SPARSE)
    settings = [f"model.path={folder}", "model.tokenizer=", "engine.executor=native"]
    with pytest.raises(ConfigError, match=r"max_model_len = 65: .* set it to 64 or less, or \[engine\] executor"):
        app({"config": "deploy/hosts.toml", "set": [*settings, "engine.max_model_len=65"]})
    app({"config": "deploy/hosts.toml", "set": settings})
    assert len(built) == 1


def test_the_shell_of_ranks_on_several_nodes_is_on_the_head_node() -> None:
    file = "deploy/transformerless.toml"
    spread = load_config(file, settings=["experts.across_nodes=true"])
    shells = [_instances(config, "decode").ray_actor_options for config in (spread, load_config(file))]
    assert [shell["resources"] for shell in shells] == [ON_HEAD_NODE, {}]
    assert "NPU" in _instances(spread, "prefill").ray_actor_options["resources"]
