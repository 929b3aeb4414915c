"""Output of `kubectl kustomize` for deploy/kuberay/, and its errors by the schemas of its kinds.

Core kinds are checked by kubernetes-validate, the others by the schemas in data/. Both are made strict: an unknown key
is an error, as on a server that validates.
"""

import json
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml  # type: ignore[import-untyped]

from tests.deploy.tools import tool

DATA = Path(__file__).parent / "data"
KUBERNETES = "1.37"
FOREIGN = {"RayService": "ray.io/v1", "PodMonitor": "monitoring.coreos.com/v1"}
FOREIGN["PrometheusRule"] = FOREIGN["PodMonitor"]
_OPEN = "x-kubernetes-preserve-unknown-fields"

Manifest = dict[str, Any]


def kustomized(folder: Path) -> list[Manifest] | str:
    """All objects that a kustomization produces, or kubectl's error."""
    done = subprocess.run([tool("kubectl"), "kustomize", str(folder)], capture_output=True, text=True, timeout=120)
    reader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader if available
    return done.stderr if done.returncode else list(yaml.load_all(done.stdout, reader))


def wrong(manifests: list[Manifest]) -> list[str]:
    """Errors of manifests, one per line."""
    found = [f"{one.get('kind')} {line}" for one in manifests for line in _wrong(json.dumps(one, sort_keys=True))]
    made = {(one["kind"], one["metadata"]["name"]) for one in manifests if "metadata" in one}
    for template in pods(manifests):
        for container in template["spec"]["containers"]:
            if container["image"] == "cloudmatrix-infer":
                found.append("an image whose registry is not set")
            for source in container.get("envFrom", ()):
                if ("ConfigMap", source["configMapRef"]["name"]) not in made:
                    found.append(f"no such ConfigMap: {source['configMapRef']['name']}")
        for volume in template["spec"].get("volumes", ()):
            if "configMap" in volume and ("ConfigMap", volume["configMap"]["name"]) not in made:
                found.append(f"no such ConfigMap: {volume['configMap']['name']}")
    return found


def pods(manifests: list[Manifest]) -> Iterator[Manifest]:
    """Every pod template."""
    for one in manifests:
        if one["kind"] == "RayService":
            yield from (group["template"] for group in groups(one))
        elif "template" in one.get("spec", {}):
            yield one["spec"]["template"]


def groups(service: Manifest) -> list[Manifest]:
    """Worker groups of a RayService, the head first."""
    cluster = service["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


@cache  # most are the same in all overlays
def _wrong(text: str) -> tuple[str, ...]:
    one: Manifest = json.loads(text)
    kind = str(one.get("kind"))
    if one.get("apiVersion") != FOREIGN.get(kind, ""):
        try:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            return (str(error)[:300],)
        return ()
    errors = jsonschema.Draft202012Validator(_schema(kind)).iter_errors(one)
    found = [f"{error.json_path}: {error.message[:200]}" for error in errors]
    for template in pods([one]):
        metadata = {"name": "of-template", **template.get("metadata", {})}
        found += _wrong(
            json.dumps({"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}, sort_keys=True)
        )
    return tuple(found)


@cache
def _schema(kind: str) -> Manifest:
    schema: Manifest = _strict(json.loads((DATA / f"{kind}.json").read_text(encoding="utf-8")))
    schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return schema


def _strict(schema: Any) -> Any:
    """The same schema, which refuses unknown properties."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in deepcopy(schema).items()}
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if made.get("type") == "object" and isinstance(made.get("properties"), dict) and not made.get(_OPEN):
        made.setdefault("additionalProperties", False)
    return made
