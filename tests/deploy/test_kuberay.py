"""The parts of deploy/kuberay/ fit together: shapes of pods and instances, ports, names."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from serving.config.cluster import PortRange
from serving.config.load import read_config
from tests.deploy.kubernetes import Manifest, groups, kustomized
from tests.deploy.tools import DEPLOY

KUBERAY = DEPLOY / "kuberay"


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    made = kustomized(KUBERAY)
    assert isinstance(made, list)
    return made


@pytest.fixture(scope="module")
def service(manifests: list[Manifest]) -> Manifest:
    (found,) = (one for one in manifests if one["kind"] == "RayService")
    return found


def _offers(group: Manifest) -> dict[str, float]:
    offers: dict[str, float] = json.loads(group["rayStartParams"].get("resources", "'{}'").strip("'"))
    return offers


def test_the_configuration_is_one_that_loads(service: Manifest) -> None:
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    path = Path(application["args"]["config"])
    assert str(path.parent) == "/etc/cloudmatrix"
    read_config(KUBERAY / "base" / path.name, settings=[f"model.path={DEPLOY}/models/storyteller"], own_nodes=False)


def test_it_is_deployed_as_deploy_serve_yaml_does(service: Manifest) -> None:
    ours, example = (
        yaml.safe_load(service["spec"]["serveConfigV2"]),
        yaml.safe_load((DEPLOY / "serve.yaml").read_text()),
    )
    for one in (ours, example):
        (application,) = one["applications"]
        del application["args"]
    assert ours == example


def test_each_pools_instances_fit_into_pods_of_their_own_group_only(service: Manifest) -> None:
    config = tomllib.loads((KUBERAY / "base" / "cloudmatrix.toml").read_text())
    offers = {group["groupName"]: _offers(group) for group in groups(service)[1:]}
    assert set(offers) == {"prefill", "decode", "kvcache"}
    for pool in offers:
        needs = {"NPU": config[pool].get("npus_per_instance", 0), "UB_MEMORY": config[pool]["ub_memory_mib"]}
        room = {name for name, offer in offers.items() if all(offer[kind] >= need for kind, need in needs.items())}
        # Memory servers need no NPUs, and more memory than a pod of another group has.
        assert room == {pool}
    for group in groups(service)[1:]:
        assert group["replicas"] >= config[group["groupName"]]["replicas"]


def test_no_pool_is_promised_more_pods_than_the_operator_adds(service: Manifest) -> None:
    autoscaler = tomllib.loads((KUBERAY / "base" / "cloudmatrix.toml").read_text())["autoscaler"]
    assert service["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"]
    assert autoscaler["nodes"] == "ray"
    for group in groups(service)[1:]:
        assert autoscaler[f"max_{group['groupName']}"] == group["maxReplicas"]


def test_pods_may_reach_every_port_that_others_need(manifests: list[Manifest], service: Manifest) -> None:
    (policy,) = (
        one for one in manifests if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "cloudmatrix"
    )
    among = policy["spec"]["ingress"][1]
    config = tomllib.loads((KUBERAY / "base" / "cloudmatrix.toml").read_text())
    own = PortRange.parse(config["cluster"]["port_range"])
    needed = {6379, 8265, own.first, own.last}
    for group in groups(service):
        needed |= {int(value) for key, value in group["rayStartParams"].items() if key.endswith("-port")}
    for port in needed:
        assert any(one["port"] <= port <= one.get("endPort", one["port"]) for one in among["ports"]), port
    labels = among["from"][0]["podSelector"]["matchLabels"].items()
    for group in groups(service):
        assert labels <= group["template"]["metadata"]["labels"].items()


def test_what_is_scraped_are_ports_of_the_pods(manifests: list[Manifest], service: Manifest) -> None:
    (monitor,) = (one for one in manifests if one["kind"] == "PodMonitor")
    named: set[str] = set()
    for group in groups(service):
        named |= {port["name"] for port in group["template"]["spec"]["containers"][0]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= named


@pytest.mark.parametrize("overlay", ["tls", "ascend"])
def test_an_overlay_changes_the_service_only(manifests: list[Manifest], overlay: str) -> None:
    made = kustomized(KUBERAY / overlay)
    assert isinstance(made, list)
    changed = [one["kind"] for one, other in zip(made, manifests, strict=True) if one != other]
    assert changed == ["RayService"]


def test_the_overlay_for_ascend_gives_pods_as_many_devices_as_ray_is_told_of() -> None:
    made: Any = kustomized(KUBERAY / "ascend")
    (service,) = (one for one in made if one["kind"] == "RayService")
    for group in groups(service)[1:]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        assert float(limits.get("huawei.com/Ascend910", 0)) == _offers(group)["NPU"]
