"""An existing Ray: the printed facts, the resulting configuration, and the message if it cannot be reached."""

from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import serve

from serving.config.cluster import ClusterConfig, NodeConfig
from serving.config.effects import idle_lines
from serving.config.load import read_config
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.launch import existing
from serving.launch.app import APP_NAME
from serving.launch.banner import one_more
from serving.launch.deploying import StartError
from serving.launch.existing import _why_not, findings
from serving.launch.hosts import Answers, Host, may_have_more, on_nodes

LEFT = Host("left", "10.0.0.1", "aa", 8, 1024, head=True)
RIGHT = Host("right", "10.0.0.2", "bb", 8, 1024, head=False)
CONFIG = ServeConfig(ModelConfig(Path("somewhere")))


def said(monkeypatch: pytest.MonkeyPatch, config: ServeConfig = CONFIG, **other: Any) -> list[str]:
    facts: dict[str, Any] = {
        "address": "10.0.0.1:6379",
        "hosts": [LEFT, RIGHT],
        "dashboard_url": "http://10.0.0.1:8265",
    }
    answers = other.pop("answers", Answers({LEFT: "redis", RIGHT: "memory"}, {}))
    monkeypatch.setattr(existing, "ask_hosts", lambda *_: answers)
    monkeypatch.setenv("RAY_AUTH_MODE", other.pop("auth", "token"))
    monkeypatch.setenv("RAY_USE_TLS", other.pop("tls", "1"))
    return findings(config, SimpleNamespace(**facts | other))  # type: ignore[arg-type]


def test_a_sound_ray_is_described_in_a_line_and_one_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, gateway=replace(CONFIG.gateway, host="0.0.0.0"))
    first, *hosts = said(monkeypatch, config)
    assert "at 10.0.0.1:6379: 2 hosts, 16 NPUs, 2048 MiB of UB memory; authentication token" in first
    assert first.endswith("control store in redis")
    assert hosts == ["  left (10.0.0.1): 8 NPUs, 1024 MiB, head", "  right (10.0.0.2): 8 NPUs, 1024 MiB"]


def test_what_will_not_work_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers({LEFT: "memory"}, {RIGHT: "has no cloudmatrix-infer"})
    lines = "\n".join(said(monkeypatch, answers=answers, auth="", tls="0", dashboard_url=""))
    for part in (
        "right (10.0.0.2) has no cloudmatrix-infer",
        "control store is in the head's memory",
        "Ray requires no token",
        "the gateway listens on 127.0.0.1 of its own host only",
        "Ray has no dashboard",
        "without TLS prompts and KV blocks can be read on the network between hosts",
    ):
        assert part in lines


def test_the_nodes_are_the_clusters_not_the_files() -> None:
    config = replace(CONFIG, cluster=ClusterConfig(nodes=(NodeConfig("file", npus=1),)))
    router = Host("door", "10.0.0.3", "cc", 0, 0, head=True)
    nodes = on_nodes(config, [router, LEFT, RIGHT]).cluster.nodes
    assert [(node.name, node.npus, node.ub_memory_mib) for node in nodes] == [("left", 8, 1024), ("right", 8, 1024)]


def test_what_does_not_fit_there_is_refused() -> None:
    config = replace(CONFIG, decode=replace(CONFIG.decode, replicas=9))
    with pytest.raises(ConfigError, match="the cluster offers 16"):
        on_nodes(config, [LEFT, RIGHT])
    with pytest.raises(ConfigError, match="no host of this Ray offers NPUs"):
        on_nodes(CONFIG, [Host("door", "10.0.0.3", "cc", 0, 0, head=True)])


def test_where_ray_may_add_hosts_nothing_has_to_fit_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    grows = replace(CONFIG, autoscaler=replace(CONFIG.autoscaler, nodes="ray"))
    door = Host("door", "10.0.0.3", "cc", 0, 0, head=True)
    assert may_have_more(grows, [door])
    assert not may_have_more(CONFIG, [door])
    assert on_nodes(grows, [door]).cluster.nodes == ()
    asked = "more are requested from Ray's autoscaler"
    assert any(asked in line for line in said(monkeypatch, on_nodes(grows, [door]), hosts=[door]))
    roomy = on_nodes(grows, [LEFT, RIGHT])
    assert not any(asked in line for line in said(monkeypatch, roomy))
    assert one_more(on_nodes(grows, [door])) == "decode 2"


def test_keys_of_the_local_start_are_named_if_they_were_set(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        '[model]\npath = "m"\n[cluster]\ngcs_storage = "memory"\n[[cluster.nodes]]\nnpus = 1\n'
        "[health]\nnode_misses = 3\nlink_misses = 9\n[decode]\nreplicas = 3\n"
    )
    (line,) = idle_lines(read_config(file, own_nodes=False), "deploy")
    assert line == (
        "[cluster] gcs_storage and [[cluster.nodes]] npus and [health] node_misses have no effect on a running Ray"
        ": its hosts, dashboard and control store are as they were started"
    )
    with pytest.raises(ConfigError, match="largest node has 1 NPUs"):
        read_config(file)


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (
            "Can't find a `node_ip_address.json` file from /tmp/ray",
            "this machine is no host of the Ray at a:1: run the",
        ),
        ("RPC error: InvalidAuthToken: Authentication token is missing", "requires its token: set RAY_AUTH_MODE=token"),
        ("Version mismatch: The cluster was started with:\nRay: 2.9", "has another version: Version mismatch"),
        ("Failed to connect to Ray cluster. More.", "no Ray responds at a:1: Failed to connect to Ray cluster"),
        ("", "no Ray responds at a:1: RuntimeError"),
    ],
)
def test_why_no_ray_was_reached_is_one_line(raised: str, line: str) -> None:
    found = _why_not("a:1", RuntimeError(raised))
    assert line in found
    assert "\n" not in found


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "nowhere", "ray://127.0.0.1:1"])
def test_an_address_at_which_nothing_listens_costs_a_moment_and_a_line(address: str) -> None:
    with pytest.raises(ConfigError, match=r"no Ray responds at 127.0.0.1|is not a Ray address"):
        existing.take_down(address)


@pytest.mark.parametrize("leaves", [True, False])
def test_removal_waits_for_replicas_but_not_for_ever(
    leaves: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = (f"SERVE_REPLICA::{APP_NAME}#gateway#a", f"SERVE_REPLICA::{APP_NAME}#decode#b", "SERVE_REPLICA::other#c#d")
    actors = [{"name": name, "namespace": "serve"} for name in (*names, "SERVE_CONTROLLER_ACTOR")]
    there = SimpleNamespace(applications={APP_NAME: SimpleNamespace(deployments={})})
    looks = chain([there] * 3, repeat(SimpleNamespace(applications={}) if leaves else there))
    for owner, name, other in (
        (ray.util, "list_named_actors", lambda all_namespaces: actors),
        (serve, "status", lambda: next(looks)),
        (serve, "delete", lambda name, _blocking: None),
        (existing, "DELETE_LOOK_S", 0.001),
        (existing, "STILL_S", 0.0),
        (existing, "DELETE_S", 60.0 if leaves else 0.05),
    ):
        monkeypatch.setattr(owner, name, other)
    if leaves:
        assert existing._delete_application() == []
    else:
        with pytest.raises(StartError, match="cloudmatrix was not removed within 0 s"):
            existing._delete_application()
    assert "still there: decode: 1; gateway: 1\n" in capsys.readouterr().out


def test_a_dashboard_that_only_the_head_reaches_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "the dashboard listens on left (10.0.0.1) itself only"
    for here, url, named in (
        ("10.0.0.2", "http://127.0.0.1:8265", True),
        ("10.0.0.2", "http://10.0.0.1:8265", False),
        ("10.0.0.1", "http://127.0.0.1:8265", False),
    ):
        monkeypatch.setattr("ray.util.get_node_ip_address", lambda here=here: here)
        assert (words in "\n".join(said(monkeypatch, dashboard_url=url))) == named
