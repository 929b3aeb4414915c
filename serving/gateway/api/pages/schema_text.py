"""JSON schemas in words: types, bounds and choices, with links to the schemas that they name."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from loadgen.report.fragments import Html, element, join

JsonSchema = Mapping[str, Any]

_LARGEST_TOLD = 2**31 - 1
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
    told = {sign: schema[name] for name, sign in signs.items() if name in schema and abs(schema[name]) < _LARGEST_TOLD}
    if told.keys() == {"≥", "≤"}:
        return [f"{told['≥']:g} to {told['≤']:g}"]
    return [" and ".join(f"{sign} {bound:g}" for sign, bound in told.items())] if told else []


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
