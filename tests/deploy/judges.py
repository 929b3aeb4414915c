"""The checker of each file of deploy/ that another program reads: that program, or its schema."""

import importlib
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from check_jsonschema import main as check_jsonschema  # type: ignore[import-untyped]
from click.testing import CliRunner
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from serving.errors import ConfigError, ModelError
from serving.gateway.api.settings import ServedModel
from serving.model.config import read_architecture
from tests.deploy.kubernetes import kustomized, wrong
from tests.deploy.tools import ROOT, told, tool


@dataclass(frozen=True)
class Judged:
    """One file, its checker, and a mistake that must be found.

    Args:
        path: below deploy/.
        judge: takes a folder in place of deploy/; returns the errors of the file in it.
        mistake: a text of the file, and the same text with a typing error.
    """

    path: str
    judge: Callable[[Path, str], str]
    mistake: tuple[str, str]


def hadolint(folder: Path, path: str) -> str:
    """Check a Dockerfile, warnings included."""
    return told(tool("hadolint"), "--no-color", str(folder / path))


def compose(folder: Path, path: str) -> str:
    """Check a file of Docker Compose by compose-spec's schema, and that the files it mounts exist."""
    wrong = _unlike_schema("--builtin-schema", "vendor.compose-spec", str(folder / path))
    for service in yaml.safe_load((folder / path).read_text())["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./") and not (folder / source).exists():
                wrong += f"{source} is not there\n"
    return wrong


def prometheus(folder: Path, path: str) -> str:
    """Check Prometheus' configuration with all files that it names. Ray's files are missing, since Ray writes them."""
    config = folder / "prometheus" / "prometheus.yml"
    if path.endswith("gateways.compose.yaml"):
        shutil.copy(folder / path, folder / "prometheus" / "gateways.yaml")
    return told(tool("promtool"), "check", "config", "--lint=all", str(config))


def rules(folder: Path, path: str) -> str:
    """Check rules."""
    return told(tool("promtool"), "check", "rules", "--lint=all", str(folder / path))


def unit(folder: Path, path: str) -> str:
    """Check a unit of systemd; the programs it starts are searched for in this repository."""
    file = folder / path
    file.write_text(file.read_text().replace("/opt/cloudmatrix-infer", str(ROOT)))
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr  # a line that it does not understand is a remark to it


def provisioning(folder: Path, path: str) -> str:
    """Check the files that Grafana reads at its start, by its documentation: there is no schema."""
    schema = Path(__file__).parent / "data" / "grafana-provisioning.json"
    return _unlike_schema("--schemafile", str(schema), str(folder / path))


def _unlike_schema(*arguments: str) -> str:
    """Output of `check-jsonschema`, called in this process; empty if the file is valid."""
    done = CliRunner().invoke(check_jsonschema, arguments)
    return "" if done.exit_code == 0 else done.output or f"exit code {done.exit_code}"


def kubernetes(folder: Path, path: str) -> str:
    """Check a file of deploy/kuberay/ by the output of its kustomization."""
    part = {"tls": "tls", "ascend": "ascend"}.get(path.split("/")[1], ".")
    return _kustomization(folder / "kuberay" / part)


@cache  # one folder, checked in its valid state
def _kustomization(folder: Path) -> str:
    manifests = kustomized(folder)
    return manifests if isinstance(manifests, str) else "\n".join(wrong(manifests))


def board(folder: Path, path: str) -> str:
    """Check a board: parsed by Grafana's own types and written again, it must be unchanged."""
    text = (folder / path).read_text(encoding="utf-8")
    register_default_plugins()
    try:
        again = JSONEncoder(sort_keys=True, indent=1).encode(Dashboard.from_json(json.loads(text)))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        return repr(error)
    return "" if json.loads(again) == json.loads(text) else "it holds what Grafana does not know"


def checkpoint(folder: Path, path: str) -> str:
    """Check a model folder's file by loading the folder with the system."""
    model = (folder / path).parent
    try:
        read_architecture(model)
        if not (model / "tokenizer.json").exists():
            return ""
        served = ServedModel.from_folder(model, names=("it",), max_model_len=1, created=0)
    except ModelError as error:
        return str(error)
    tokenizer = served.tokenizer
    unknown = [name for name, text in tokenizer.special_tokens.items() if tokenizer.raw.token_to_id(text) is None]
    return f"the tokenizer lacks {', '.join(unknown)}" if unknown else ""


def figures(folder: Path, path: str) -> str:
    """Check measured figures: numbers at every depth."""
    left = [json.loads((folder / path).read_text(encoding="utf-8"))]
    while left:
        one = left.pop()
        if isinstance(one, dict | list):
            left += one.values() if isinstance(one, dict) else one
        elif isinstance(one, bool) or not isinstance(one, int | float):
            return f"{one!r} is no number"
    return ""


def serve_yaml(folder: Path, path: str) -> str:
    """Check a file of Ray Serve by Serve's own schema, made strict, and that the things it names exist."""
    from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema  # heavy

    from serving.config.load import load_config

    raw = yaml.safe_load((folder / path).read_text())
    unknown = set(raw) - set(ServeDeploySchema.model_fields)
    unknown |= {key for one in raw["applications"] for key in one} - set(ServeApplicationSchema.model_fields)
    if unknown:
        return f"unknown: {unknown}"
    try:
        read = ServeDeploySchema.model_validate(raw)
        for application in read.applications:
            module, _, name = application.import_path.partition(":")
            getattr(importlib.import_module(module), name)
            load_config(folder.parent / application.args["config"], settings=application.args["set"])
    except (ValueError, ImportError, AttributeError, KeyError, ConfigError) as error:
        return str(error)
    return ""


def autoscaling(folder: Path, path: str) -> str:
    """Check a file that the monitor of a head reads, by Ray's own schema and checks."""
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import validate_config  # heavy

    try:
        validate_config(yaml.safe_load((folder / path).read_text()))
    except (ValidationError, ValueError, RuntimeError) as error:
        return str(error)
    return ""
