"""Outputs of a JSON schema over the demo model's vocabulary."""

import json
import random
from functools import cache
from typing import Any

import numpy as np

from serving.grammar.compile import Grammars
from serving.grammar.matcher import Matcher
from serving.values.sequence import Grammar, GrammarKind
from tests.grammar.storyteller import STOP, grammars, tokenizer


@cache
def _grammars() -> Grammars:
    return grammars()


def matcher_of(schema: dict[str, Any], **options: Any) -> Matcher:
    """A matcher of a new output. Raises: GrammarError."""
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema), **options)
    return Matcher(_grammars().fresh(grammar), _grammars().vocabulary.size, (STOP,))


def drawn(schema: dict[str, Any], seed: int, most: int = 300, **options: Any) -> str:
    """A random output, without its stop token."""
    output: list[int] = []
    one, rng = matcher_of(schema, **options), random.Random(seed)
    while len(output) < most:
        token = int(rng.choice(np.flatnonzero(one.allowed())))
        if token == STOP:
            break
        output.append(token)
        one.take((token,))
    return tokenizer().decode(output)


def accepts(schema: dict[str, Any], text: str, **options: Any) -> bool:
    """Whether a text is a complete output."""
    one = matcher_of(schema, **options)
    for token in tokenizer().encode(text, add_special_tokens=False):
        if not one.allowed()[token]:
            return False
        one.take((token,))
    return bool(one.allowed()[STOP])
