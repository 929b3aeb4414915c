"""A request's constraint on its output as a `Grammar`, from any syntax of OpenAI, current vLLM and earlier vLLM.

All are enforced equally, strict or not: the whole output matches, unless it is cut at its length limit. `strict` only
decides about properties that a schema of `response_format` leaves open: true = objects have no properties that the
schema does not name (OpenAI requires the schema to state this itself); absent = none where it names some; false = as in
JSON Schema. A grammar is compiled before its request is queued, so that errors are reported at once with their field.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llguidance import StructTag
from llguidance.gbnf_to_lark import any_to_lark

from hardware.nesting import parse_json
from serving.errors import GrammarError, InvalidRequestError
from serving.gateway.api.foreign_fields import Foreign
from serving.gateway.api.schema import GenerationRequest
from serving.gateway.api.settings import ServedModel
from serving.gateway.api.unknown_fields import unsupported
from serving.grammar.schema import closed_schema, sound_schema
from serving.grammar.text import MOST_TEXT, check_size, json_options
from serving.values.sequence import Grammar, GrammarKind

_OLD = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
}
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "disable_fallback", "whitespace_pattern")
_ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True)
class _Constraint:
    """One constraint of a request.

    Args:
        field: the request's name for it, for errors.
        kind: one of `_KINDS`.
        options: of `structured_outputs`.
    """

    field: str
    kind: str
    value: object
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wished:
    """A grammar requested for the output, not compiled yet, and its request field."""

    field: str
    grammar: Grammar


def wants_grammar(body: GenerationRequest) -> bool:
    """Whether a request may have a grammar, so that translating it may take many milliseconds."""
    if any(getattr(body, name, None) is not None for name in ("tools", "functions", "thinking_token_budget")):
        return True
    form = body.response_format
    plain = form is None or form == {} or (isinstance(form, dict) and form.get("type") == "text")
    return not plain or body.structured_outputs is not None or any(getattr(body, name) is not None for name in _OLD)


def grammar_of(body: GenerationRequest, model: ServedModel) -> Grammar | None:
    """The request's grammar, compiled once; None if it has none.

    Raises: InvalidRequestError naming the field.
    """
    wished = wished_grammar(body, model)
    if wished is None:
        return None
    try:
        return compiled(model, wished.grammar)
    except GrammarError as error:
        raise _wrong(wished.field, f"cannot be followed: {error}") from error


def compiled(model: ServedModel, grammar: Grammar) -> Grammar:
    """The grammar, compiled by this call. Raises: GrammarError."""
    try:
        model.grammars.fresh(grammar)
    except ValueError as error:  # not JSON, or nested too deeply
        raise GrammarError(str(error)) from error
    return grammar


def wished_grammar(body: GenerationRequest, model: ServedModel) -> Wished | None:
    """Grammar that the request's output must follow; None = any text.

    Raises: InvalidRequestError naming the field.
    """
    constraints = [*_response_format(body.response_format), *_structured(body.structured_outputs), *_old(body)]
    if not constraints:
        return None
    constraint = constraints[0]
    if len(constraints) > 1:
        raise _wrong(constraints[1].field, f"and '{constraint.field}' both constrain the output; give one of them")
    if not any(token < model.token_limit for token in model.eos_ids):
        raise _wrong(constraint.field, "needs a model with an end token, and this one names none")
    for name in ("ignore_eos", "min_tokens"):
        if getattr(body, name):
            raise _wrong(name, f"contradicts '{constraint.field}': an output ends where it is complete")
    try:
        return Wished(constraint.field, _grammar(constraint))
    except (GrammarError, ValueError) as error:  # not JSON, or nested too deeply
        raise _wrong(constraint.field, f"cannot be followed: {error}") from error


def _wrong(field: str, words: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{field}' {words}", param=field, code="invalid_value")


def _response_format(form: object) -> list[_Constraint]:
    if form is None or form == {}:
        return []
    field = "response_format"
    kind = form.get("type") if isinstance(form, dict) else None
    if not isinstance(form, dict) or kind not in ("text", "json_object", "json_schema", "structural_tag"):
        raise _wrong(field, "must be an object whose type is text, json_object, json_schema or structural_tag")
    for name, value in form.items():
        if kind in ("text", "json_object") and name != "type" and not Foreign().changes_nothing(value, {}):
            raise unsupported(f"{field}.{name[:40]}")
    if kind == "text":
        return []
    if kind == "json_object":
        return [_Constraint(field, "json_object", True, {})]
    if kind == "structural_tag":
        return [_Constraint(field, "structural_tag", form, {})]
    inner = form.get("json_schema")
    if not isinstance(inner, dict):
        raise _wrong(f"{field}.json_schema", "must be an object with a 'schema'")
    schema, strict = inner.get("schema", inner.get("json_schema")), inner.get("strict")
    if not isinstance(strict, bool | None):
        raise _wrong(f"{field}.json_schema.strict", "must be true or false")
    return [_Constraint(f"{field}.json_schema", "json", _ANY_OBJECT if schema is None else schema, {"strict": strict})]


def _structured(value: object) -> list[_Constraint]:
    if value is None:
        return []
    field = "structured_outputs"
    if not isinstance(value, dict):
        raise _wrong(field, "must be an object")
    unknown = [name for name in value if name not in (*_KINDS, *_OPTIONS) and not name.startswith("_backend")]
    if unknown:
        raise _wrong(f"{field}.{unknown[0][:40]}", f"is not known; there are {', '.join((*_KINDS, *_OPTIONS))}")
    given = [name for name in _KINDS if value.get(name) not in (None, False)]
    options = {name: value.get(name) for name in _OPTIONS}
    for name, own in options.items():
        expected: type = str if name == "whitespace_pattern" else bool
        if own is not None and not isinstance(own, expected):
            raise _wrong(f"{field}.{name}", f"must be a {'text' if expected is str else 'truth value'}")
    if len(given) != 1:
        raise _wrong(field, f"must hold exactly one of {', '.join(_KINDS)}")
    return [_Constraint(f"{field}.{given[0]}", given[0], value[given[0]], options)]


def _old(body: GenerationRequest) -> list[_Constraint]:
    options = {"whitespace_pattern": body.guided_whitespace_pattern}
    found = [(name, kind, getattr(body, name)) for name, kind in _OLD.items()]
    return [_Constraint(name, kind, value, options) for name, kind, value in found if value not in (None, False)]


def _grammar(constraint: _Constraint) -> Grammar:
    """Raises: GrammarError, InvalidRequestError; ValueError for text that is not JSON."""
    pattern = constraint.options.get("whitespace_pattern") or ""
    free = constraint.options.get("disable_any_whitespace") is False
    if constraint.kind in ("json", "json_object"):
        schema = _ANY_OBJECT if constraint.kind == "json_object" else _schema(constraint.value)
        strict = constraint.options.get("strict", False)
        if constraint.options.get("disable_additional_properties") or strict is not False:
            schema = closed_schema(schema, named=strict is None)
        return Grammar(GrammarKind.JSON_SCHEMA, _dumped(schema), free, pattern)
    if pattern:
        raise GrammarError("'whitespace_pattern' is for JSON only")
    if constraint.kind == "choice":
        return Grammar(GrammarKind.LARK, _choice(constraint.value))
    if constraint.kind == "structural_tag":
        return Grammar(GrammarKind.LARK, _structural_tag(constraint.value, free=free))
    if not isinstance(constraint.value, str):
        raise GrammarError("it must be a string")
    if constraint.kind == "regex":
        return Grammar(GrammarKind.REGEX, constraint.value)
    return Grammar(GrammarKind.LARK, _lark(constraint.value))


def _schema(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        if len(value) > MOST_TEXT:
            raise GrammarError(f"it has {len(value)} characters; at most {MOST_TEXT} are allowed")
        value = parse_json(value)
    if not isinstance(value, dict):
        raise GrammarError("a JSON schema must be an object")
    return value


def _dumped(schema: object) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _choice(value: object) -> str:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise GrammarError("it must be a non-empty list of strings")
    return "start: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in value)


def _lark(text: str) -> str:
    """A grammar in llguidance's dialect of Lark, or in llama.cpp's GBNF."""
    if len(text) > MOST_TEXT:
        raise GrammarError(f"it has {len(text)} characters; at most {MOST_TEXT} are allowed")
    try:
        lark = str(any_to_lark(text))
    except RecursionError:
        raise GrammarError("it is nested too deeply") from None
    except Exception as error:  # any error of the converter means that the text is invalid
        raise GrammarError(f"it is not a valid grammar: {error}") from error
    check_size(lark)
    return lark


def _structural_tag(value: object, *, free: bool) -> str:
    """Free text in which each tag that starts with a trigger continues according to its schema up to its end."""
    tag = parse_json(value) if isinstance(value, str) else value
    structures, triggers = (tag.get("structures"), tag.get("triggers")) if isinstance(tag, dict) else (None, None)
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures:
        raise GrammarError("a structural tag must have 'structures' and 'triggers'; other forms are not supported")
    options = json_options(Grammar(GrammarKind.JSON_SCHEMA, "", free))
    tags = []
    for one in structures:
        begin = one.get("begin") if isinstance(one, dict) else None
        if not isinstance(begin, str) or not isinstance(one.get("end", ""), str):
            raise GrammarError("each structure must have 'begin', 'schema' and 'end'")
        trigger = next((t for t in triggers if isinstance(t, str) and t and begin.startswith(t)), None)
        if trigger is None:
            raise GrammarError(f"no trigger is a prefix of the structure {begin[:40]!r}")
        schema = {**sound_schema(_schema(one.get("schema") or {})), "x-guidance": options}
        tags.append(StructTag(trigger=trigger, begin=begin, grammar=schema, end=one.get("end", "")))
    return str(StructTag.to_grammar(tags, assume_special=False))
