"""Every route of the endpoint, generated from its OpenAPI document."""

import html
import re
from collections.abc import Iterator, Mapping
from typing import Any

from docs.reference_pages.markdown import made_by_a_script, table
from serving.gateway.api.app import NOT_SERVED, create_app
from serving.gateway.api.foreign_fields import REFUSED_BECAUSE
from serving.gateway.api.pages.api_page import type_text
from serving.gateway.api.settings import ApiSettings, ServedModel, hash_api_key
from serving.telemetry.metrics import GatewayMetrics
from tests.fakes.backend import FakeBackend, Script
from tests.fakes.pool_admin import two_servers
from tests.fakes.prefix_finder import FakePrefixFinder
from tests.pages import ROOT

HEAD = """Routes of the endpoint. A running one shows the same under `/docs`, and as OpenAPI under `/openapi.json`.
Any OpenAI client works; its base URL is `http://127.0.0.1:8000/v1`, its API key one of the configured keys,
or any text if there are none. Anthropic's clients take the same address without `/v1`.

Invalid requests get an OpenAI error object whose `param` names the field, or Anthropic's error object below
`/v1/messages`. Fields of a body that are not required may be omitted or null. A field without effect on this
server is named in the response header `X-CloudMatrix-Warning`; an unsupported field that would change the response
is refused. The routes that scale pools are on Ray's dashboard: see [scaling](../../serving/scaling/README.md)."""
_MODEL = ROOT / "deploy" / "models" / "storyteller"


def api() -> str:
    """The page."""
    described = _document()
    schemas = described["components"]["schemas"]
    groups: dict[str, list[str]] = {tag: [] for tag in ("generation", "tokens", "information", "KV-cache pool")}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append(_operation(f"{method.upper()} {path}", operation))
    parts = [made_by_a_script("API", HEAD), _errors(described)]
    for tag, operations in groups.items():
        parts += [f"## {tag[0].upper()}{tag[1:]}\n", *operations]
    parts += ["## Bodies and answers\n", *_schemas(schemas), *_refused()]
    return "\n".join(parts)


def _refused() -> Iterator[str]:
    """All fields that are refused, with the reason."""
    yield (
        "## Refused fields\n\nFields that other servers know and this one refuses, because they would change the "
        "response. Each is accepted with a value that changes nothing, such as null, an empty list, or its usual "
        "default. Fields that only concern speed or bookkeeping are ignored, and named in the warning header."
    )
    for reason, fields in REFUSED_BECAUSE.items():
        yield f"### Refused: {reason}\n"
        named: dict[str, list[str]] = {}
        for name, one in fields.items():
            named.setdefault(one.ours, []).append(f"`{name}`")
        if set(named) == {""}:
            yield ", ".join(named[""]) + "\n"
        else:
            yield table(("use", "instead of"), [(ours or "nothing", ", ".join(names)) for ours, names in named.items()])
    yield "### Routes that are not served\n"
    yield table(("route", "404"), [(f"`{path}`", words) for path, words in NOT_SERVED.items()])


def _document() -> Mapping[str, Any]:
    """OpenAPI document of an endpoint with all options: keys, a pool, times of requests."""
    served = ServedModel.from_folder(_MODEL, names=("storyteller",), max_model_len=512, created=0)
    app = create_app(
        FakeBackend(lambda _: Script(())),
        served,
        ApiSettings(version="1", per_request_metrics=True, api_key_hashes=(hash_api_key("any"),)),
        GatewayMetrics("storyteller"),
        pool=two_servers(),
        prefixes=FakePrefixFinder(),
    )
    document: Mapping[str, Any] = app.openapi()
    return document


def _errors(described: Mapping[str, Any]) -> str:
    """A table of error statuses; each means the same on every route."""
    answers = [one["responses"] for methods in described["paths"].values() for one in methods.values()]
    meaning = {
        status: answer["description"] for found in answers for status, answer in found.items() if status != "200"
    }
    rows = [(status, text) for status, text in sorted(meaning.items())]
    lead = "The body of an error is an [ErrorAnswer](#erroranswer). 401 is returned only where keys are required."
    return f"{lead}\n\n{table(('status', 'meaning'), rows)}"


def _operation(title: str, operation: Mapping[str, Any]) -> str:
    """A route: its description, body and response."""
    parts = [f"### {title}", operation.get("description", "").strip()]
    body = operation.get("requestBody")
    if body is not None:
        parts.append(f"Takes {' or '.join(_taken(*one) for one in body['content'].items())}.")
    answers = operation["responses"]
    kinds = " or ".join(_kinds(answers["200"])) or "only the status"
    parts.append(f"Returns {kinds}; errors: {', '.join(status for status in answers if status != '200')}.")
    return "\n\n".join(filter(None, parts)) + "\n"


def _taken(media: str, content: Mapping[str, Any]) -> str:
    """A body in words: the schema of JSON, or the fields of a form."""
    schema = content["schema"]
    if media == "application/json":
        return _type(schema)
    fields = [
        f"`{name}` ({one['description'][:1].lower()}{one['description'][1:-1]})"
        for name, one in schema["properties"].items()
    ]
    return f"a form, `{media}`, with {' and '.join(fields)}"


def _kinds(answer: Mapping[str, Any]) -> Iterator[str]:
    for media, content in answer.get("content", {}).items():
        yield _type(content["schema"]) if media == "application/json" else f"`{media}`{_events(content['schema'])}"


def _events(schema: Mapping[str, Any]) -> str:
    names = re.findall(r"'#/components/schemas/(\w+)'", repr(schema))
    return f" of {', '.join(f'[{name}](#{name.lower()})' for name in names if name != 'ErrorAnswer')}" if names else ""


def _schemas(schemas: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(schemas.items()):
        required = set(schema.get("required", ()))
        fields = sorted(schema.get("properties", {}).items(), key=lambda item: item[0] not in required)
        noted = any("description" in one for _, one in fields)
        rows = [
            (f"`{field}`{' (required)' if field in required else ''}", _type(one), one.get("description", ""))
            for field, one in fields
        ]
        head = ("field", "type", "meaning")
        told = table(head, rows) if noted else table(head[:2], [row[:2] for row in rows])
        parts = (f"### {name}", schema.get("description", ""), told if rows else _type(schema))
        yield "\n\n".join(filter(None, parts))


def _type(schema: Mapping[str, Any]) -> str:
    """A type in words, names of schemas as links."""
    text = re.sub(
        r'<a href="#(\w+)">\w+</a>', lambda found: f"[{found[1]}](#{found[1].lower()})", str(type_text(schema))
    )
    return html.unescape(re.sub("</?code>", "`", text))
