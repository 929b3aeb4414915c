"""The page at `/docs`: every operation with its fields, responses and an example, built from `/openapi.json` alone."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from loadgen.report.fragments import Html, details, element, join, section
from serving.gateway.api.pages.document import PageDocument, document, link

# JSON schemas in words: types, bounds and choices, with links to the schemas that they name.

JsonSchema = Mapping[str, Any]

_LARGEST_SHOWN = 2**31 - 1
"""Larger bounds are limits of number formats, which are not shown."""


def type_text(schema: JsonSchema) -> Html:
    """A type in words. `null` is left out: a field that may be null may be absent."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return Html(f'<a href="#{escape(name)}">{escape(name)}</a>')
    for several in ("anyOf", "oneOf"):
        if several in schema:
            kinds = [type_text(one) for one in schema[several] if one.get("type") != "null"]
            return join(list(dict.fromkeys(kinds)), " or ")
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return join([element("code", json.dumps(one)) for one in values if one is not None], " or ")
    match schema.get("type"):
        case "array":
            return join(["list of ", type_text(schema.get("items", {}))], "")
        case "object" if isinstance(schema.get("additionalProperties"), Mapping):
            return join(["object of ", type_text(schema["additionalProperties"])], "")
        case str(kind):
            return join([kind, *_bounds(schema)], " ")
    return Html("anything")


def _bounds(schema: JsonSchema) -> list[str]:
    """Bounds of a number; limits of number formats are omitted."""
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = {
        sign: schema[name] for name, sign in signs.items() if name in schema and abs(schema[name]) < _LARGEST_SHOWN
    }
    if bounds.keys() == {"≥", "≤"}:
        return [f"{bounds['≥']:g} to {bounds['≤']:g}"]
    return [" and ".join(f"{sign} {bound:g}" for sign, bound in bounds.items())] if bounds else []


def fields_table(schema: JsonSchema) -> Html:
    """An object's fields: name, type, meaning; required fields first. Empty for an object without fields."""
    required = set(schema.get("required", ()))
    fields = sorted(schema.get("properties", {}).items(), key=lambda item: item[0] not in required)
    if not fields:
        return Html("")
    noted = any("description" in one for _, one in fields)
    rows = [_row(name, one, is_required=name in required, noted=noted) for name, one in fields]
    titles = join([element("th", title) for title in ("field", "type", *(["meaning"] if noted else []))], "")
    head = element("thead", element("tr", titles))
    table = element("table", join([head, element("tbody", join(rows))]), "stack")
    return element("div", table, "panel")


def _row(name: str, schema: JsonSchema, *, is_required: bool, noted: bool) -> Html:
    must = Html(" <small>required</small>") if is_required else ""
    cells = [
        element("th", join([element("code", name), must], "")),
        element("td", type_text(schema), "type"),
        *([element("td", noted_text(schema.get("description", "")))] if noted else []),
    ]
    return element("tr", join(cells, ""))


def noted_text(text: str) -> Html:
    """A sentence whose `names` are set as code."""
    parts = text.split("`")
    return join([element("code", part) if place % 2 else part for place, part in enumerate(parts)], "")


# The page at `/docs`: every operation with its fields, responses and an example, built from `/openapi.json` alone.

EXAMPLES: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 40},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0},
    "/v1/messages": {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 40},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Tell me a story."}]},
    "/v1/responses": {"input": "Tell me a story.", "max_output_tokens": 40},
    "/v1/responses/input_tokens": {"input": "Tell me a story."},
    "/v1/responses/compact": {"input": "Tell me a story."},
    "/v1/chat/completions/render": {"messages": [{"role": "user", "content": "Tell me a story."}]},
    "/v1/completions/render": {"prompt": "Once upon a time"},
    "/inference/v1/generate": {"token_ids": [40, 41, 42], "sampling_params": {"max_tokens": 40}},
    "/tokenize": {"prompt": "Once upon a time"},
    "/detokenize": {"tokens": [40, 41, 42]},
    "/abort_requests": {"request_ids": ["REQUEST_ID"]},
    "/v1/batches": {"input_file_id": "FILE_ID", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
    "/pool/namespaces/{name}": {"quota_mib": 512},
    "/pool/audit": {"repair": False},
    "/v1/messages/cache_touch": {"request_id": "REQUEST_ID"},
    "/v1/kv_hints": {
        "protocol_version": "0.1",
        "message_id": "m1",
        "actions": [{"action_id": "a1", "action_type": "kv.release", "payload": {"session_id": "SESSION"}}],
    },
    "/query": {"block_size": 16, "token_ids": [40, 41, 42]},
}
"""Example body of each operation that has one, by path; the same for every model."""
FORM = "multipart/form-data"
FORMS: Mapping[str, list[str]] = {"/v1/files": ["purpose=batch", "file=@requests.jsonl"]}
"""Example fields of each operation that takes a form, by path."""
_FIRST = ("generation", "information", "KV-cache pool")
"""Tags listed before the others."""


def api_page(described: Mapping[str, Any], url: str, pools_page: str = "") -> PageDocument:
    """The page.

    Args:
        described: the OpenAPI document.
        url: this server's URL in the browser.
        pools_page: see `StartFacts`.
    """
    schemas, keys = described["components"]["schemas"], "securitySchemes" in described["components"]
    groups: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {tag: [] for tag in _FIRST}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    every = [one for group in groups.values() for one in group]
    contents = [element("li", link(f"#{_anchor(method, path)}", f"{method} {path}")) for method, path, _ in every]
    lead = (
        "Any OpenAI client works with base URL "
        f"<code>{escape(url)}/v1</code>. Fields of a body that are not required may be left out or null. "
        "Anthropic's take the address without <code>/v1</code>. "
        "The body of an error is an " + type_text({"$ref": "#/ErrorAnswer"}) + ", on Anthropic's routes a "
        "" + type_text({"$ref": "#/MessagesErrorAnswer"}) + "."
    )
    body = [
        element("h1", "API"),
        element("p", Html(lead)),
        *([element("p", Html("Send an API key as <code>Authorization: Bearer KEY</code>."))] if keys else []),
        element("ul", join(contents), "toc"),
        *(
            section(tag.replace(" ", "-"), _title(tag), *[_operation(*one, schemas, url) for one in group])
            for tag, group in groups.items()
        ),
        section("schemas", "Schemas", *[_schema(name, schemas[name]) for name in _named(every, schemas)]),
    ]
    links = [
        link("./", "Chat"),
        link("requests", "Requests"),
        link("openapi.json", "openapi.json"),
        link("metrics", "Metrics"),
        *([link(pools_page, "Pools")] if pools_page else []),
    ]
    return document(f"API – {described['info']['title']}", links, body)


def _title(tag: str) -> str:
    return tag[:1].upper() + tag[1:]


def _anchor(method: str, path: str) -> str:
    return f"{method.lower()}{path.replace('/', '-').replace('{', '').replace('}', '')}"


def _operation(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any], url: str) -> Html:
    anchor = _anchor(method, path)
    name = Html(f'<span class="method">{method}</span><code>{escape(path)}</code>')
    heading = Html(f'<h3 id="{anchor}"><a href="#{anchor}">{name}</a></h3>')
    text = [element("p", noted_text(part)) for part in operation.get("description", "").split("\n\n")]
    body = operation.get("requestBody")
    parts = [heading, *text]
    form = None
    if body is not None:
        form = body["content"].get(FORM, {}).get("schema")
        kind = "" if form else body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        parts.append(details(f"Fields of the {'form' if form else 'body'}", fields_table(form or schemas[kind])))
    has_json = body is not None and form is None
    parts += [details("Answers", _answers(operation["responses"])), _example(method, path, has_json, url)]
    return element("section", join(parts), "operation")


def _example(method: str, path: str, has_body: bool, url: str) -> Html:
    """A command to copy."""
    form = FORMS.get(path, []) if method == "POST" else []
    plain = method == "GET" or (method == "POST" and (has_body or form))
    words = ["curl", *([] if plain else ["-X", method])]
    words.append(shlex.quote(url + re.sub(r"{(\w+)}", lambda found: found[1].upper(), path)))
    if has_body:
        sent = shlex.quote(json.dumps(EXAMPLES[path]))
        words += ["-H", "'Content-Type: application/json'", "\\\n ", "-d", sent]
    words += [word for field in form for word in ("-F", field)]
    return element("code", " ".join(words), "command")


def _answers(responses: Mapping[str, Any]) -> Html:
    rows = []
    for status, response in responses.items():
        kinds = [_content(kind, one.get("schema", {})) for kind, one in response.get("content", {}).items()]
        cells = [
            element("th", status),
            element("td", noted_text(response["description"])),
            element("td", join(kinds, "; ") if kinds else "no body", "type"),
        ]
        rows.append(element("tr", join(cells, "")))
    return element("div", element("table", element("tbody", join(rows)), "stack"), "panel")


def _content(media_type: str, schema: JsonSchema) -> Html:
    if media_type == "text/event-stream":
        names = [kind for kind in _references(schema) if kind != "ErrorAnswer"]
        kinds = join([type_text({"$ref": f"#/{name}"}) for name in names], ", ")
        return join(["with stream, events of ", kinds], "")
    return type_text(schema) if media_type == "application/json" else Html(escape(media_type))


def _schema(name: str, schema: JsonSchema) -> Html:
    anchor = escape(name)
    heading = Html(f'<h3 id="{anchor}"><a href="#{anchor}"><code>{anchor}</code></a></h3>')
    note = element("p", noted_text(schema.get("description", "")), "soft")
    return element("section", join([heading, note, fields_table(schema)]), "schema")


def _named(operations: list[tuple[str, str, Mapping[str, Any]]], schemas: Mapping[str, JsonSchema]) -> list[str]:
    """Schemas that the page links to: responses, and the parts of bodies and responses, in order of their first use.

    Bodies themselves are shown with their operations.
    """
    bodies = [name for _, _, one in operations for name in _references(one.get("requestBody", {}))]
    found = dict.fromkeys(name for _, _, one in operations for name in _references(one["responses"]))
    queue = [*bodies, *found]
    for name in queue:  # grows while it is read
        for part in _references(schemas[name]):
            if part not in found:
                found[part] = None
                queue.append(part)
    return list(found)


def _references(value: object) -> Iterator[str]:
    """Names of all schemas that a value refers to."""
    if isinstance(value, Mapping):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].rpartition("/")[2]
        for one in value.values():
            yield from _references(one)
    elif isinstance(value, list):
        for one in value:
            yield from _references(one)
