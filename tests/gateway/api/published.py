"""Responses against the schemas that OpenAI publishes, and against our own document."""

import contextlib
import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from pydantic import ValidationError

from serving.gateway.api.responses.event_schema import RESPONSE_EVENTS

SCHEMAS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "cases" / "openai_answers.json").read_text(encoding="utf-8")
)["schemas"]
EVENTS = {
    SCHEMAS[name]["properties"]["type"]["enum"][0]: name
    for name in (one["$ref"].rpartition("/")[2] for one in SCHEMAS["ResponseStreamEvent"]["anyOf"])
}


def check(name: str, value: Any) -> None:
    """Raises: AssertionError if a value does not match a published schema."""
    if name == "ResponseStreamEvent":  # its alternatives are distinguished by their types
        name = EVENTS[value["type"]]
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": SCHEMAS}}
    wrong = sorted(Draft202012Validator(schema).iter_errors(value), key=lambda error: -len(error.absolute_path))
    assert not wrong, [(list(error.absolute_path), error.message[:300]) for error in wrong[:3]]


def described(shown: Any) -> bool:
    """Whether an event matches one of the documented events."""
    for model in RESPONSE_EVENTS:
        with contextlib.suppress(ValidationError):
            model.model_validate(shown)
            return True
    return False
