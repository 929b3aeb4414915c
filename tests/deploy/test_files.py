"""Every file of deploy/ that another program reads is checked by that program, and a typing error in it is found."""

import shutil
from pathlib import Path

import pytest

from deploy.grafana.source.all import BOARDS
from tests.deploy.judges import (
    Judged,
    autoscaling,
    board,
    checkpoint,
    compose,
    figures,
    hadolint,
    kubernetes,
    prometheus,
    provisioning,
    rules,
    serve_yaml,
    unit,
)
from tests.deploy.tools import DEPLOY, ROOT

JUDGED = [
    Judged("../Dockerfile", hadolint, ("--no-install-recommends g++ wget", "g++ wget")),
    Judged("compose.yaml", compose, ("healthcheck:", "healthchek:")),
    Judged("prometheus/prometheus.yml", prometheus, ("scrape_interval", "scrape_intervall")),
    Judged("prometheus/gateways.yaml", prometheus, ("- targets:", "- target:")),
    Judged("prometheus/gateways.compose.yaml", prometheus, ("- targets:", "- target:")),
    Judged("prometheus/serving.rules.yaml", rules, ("[30m])))", "[30m]))")),
    Judged("prometheus/experts.rules.yaml", rules, ("annotations:", "annotation:")),
    Judged("serve.yaml", serve_yaml, ("external_scaler_enabled", "external_scaler_enable")),
    Judged("hosts/offline-autoscaler.yaml", autoscaling, ("max_workers: 2", "max_worker: 2")),
    Judged("hosts/cloudmatrix-head.service", unit, ("Restart=always", "Restart=allways")),
    Judged("hosts/cloudmatrix-worker.service", unit, ("ExecStart=", "ExecStrat=")),
    Judged("grafana/provisioning/datasources/prometheus.yaml", provisioning, ("isDefault", "isdefault")),
    Judged("grafana/provisioning/dashboards/cloudmatrix.yaml", provisioning, ("path:", "paths:")),
    *(Judged(f"grafana/boards/{name}.json", board, ('"legendFormat"', '"legend"')) for name in BOARDS),
    Judged("models/storyteller/config.json", checkpoint, ('"num_hidden_layers"', '"num_hiden_layers"')),
    Judged("models/storyteller/generation_config.json", checkpoint, ("0.7", '"warm"')),
    Judged("models/storyteller/tokenizer.json", checkpoint, ('"model"', '"modell"')),
    Judged("models/storyteller/tokenizer_config.json", checkpoint, ('"<|end|>"', '"<|ende|>"')),
    Judged("models/storyteller/figures.json", figures, ("44083", '"44083"')),
    Judged("models/deepseek-r1-shape/config.json", checkpoint, ('"kv_lora_rank"', '"kv_lora_rang"')),
    Judged("kuberay/kustomization.yaml", kubernetes, ("[base]", "[bas]")),
    Judged("kuberay/base/kustomization.yaml", kubernetes, ("newName:", "newNam:")),
    Judged("kuberay/base/names.yaml", kubernetes, ("headGroupSpec/template/spec/volumes", "headGroup/volumes")),
    Judged("kuberay/base/rayservice.yaml", kubernetes, ("maxReplicas:", "maxReplica:")),
    Judged("kuberay/base/rayservice.yaml", kubernetes, ("readinessProbe:", "readynessProbe:")),
    Judged("kuberay/base/rayservice.yaml", kubernetes, ("minReplicas: 1", "minReplicas: one")),
    Judged("kuberay/base/redis.yaml", kubernetes, ("serviceName:", "servicename:")),
    Judged("kuberay/base/network.yaml", kubernetes, ("endPort:", "endport:")),
    Judged("kuberay/base/monitoring.yaml", kubernetes, ("sourceLabels:", "source_labels:")),
    Judged("kuberay/base/rules.yaml", kubernetes, ("expr:", "exp:")),
    Judged("kuberay/tls/kustomization.yaml", kubernetes, ("enabled: true", "enabled: maybe")),
    Judged("kuberay/ascend/kustomization.yaml", kubernetes, ("containers/0", "containers/9")),
]
READ_BY_OTHERS = {".yaml", ".yml", ".json", ".service"}
each_file = pytest.mark.parametrize("file", JUDGED, ids=lambda file: file.path)


def copied(folder: Path) -> Path:
    """A copy of deploy/, as far as these files need it."""
    shutil.copy(ROOT / "Dockerfile", folder)
    shutil.copytree(DEPLOY, folder / "deploy", ignore=shutil.ignore_patterns("*.safetensors", "*.png", "*.py"))
    return folder / "deploy"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unmodified, valid copy."""
    return copied(tmp_path_factory.mktemp("whole"))


def test_none_is_left_out() -> None:
    there = {path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*") if path.suffix in READ_BY_OTHERS}
    assert there == {file.path for file in JUDGED} - {"../Dockerfile"}


@each_file
def test_it_is_right(file: Judged, whole: Path) -> None:
    assert file.judge(whole, file.path) == ""


@each_file
def test_a_slip_in_it_is_found(file: Judged, tmp_path: Path) -> None:
    right, wrong = file.mistake
    copy = copied(tmp_path)
    text = (copy / file.path).read_text()
    assert right in text
    (copy / file.path).write_text(text.replace(right, wrong, 1))
    assert file.judge(copy, file.path) != ""
