"""The demo model's vocabulary, with three additional ids without tokens, and grammars over it."""

import json
from functools import cache
from pathlib import Path

from serving.gateway.api.tokenizer import Tokenizer
from serving.grammar.compile import Grammars
from serving.grammar.guidance import GuidanceRoute
from serving.values.sequence import Grammar, GrammarKind

STORYTELLER = Path(__file__).parents[2] / "deploy/models/storyteller"
STOP = 1
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
RECORD = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
YES = Grammar(GrammarKind.LARK, 'start: "yes" | "no"')


@cache
def tokenizer() -> Tokenizer:
    """The demo model's."""
    return Tokenizer.from_folder(STORYTELLER)


def grammars(route: GuidanceRoute | None = None) -> Grammars:
    """Compiled grammars of their own."""
    return Grammars(lambda: tokenizer().vocabulary(tokenizer().vocab_size + 3), route)
