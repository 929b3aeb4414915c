"""The storyteller's vocabulary with the markers of a family as tokens."""

from functools import cache
from pathlib import Path

import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as RawTokenizer

from serving.gateway.api.detokenizer import make_detokenizer
from serving.gateway.api.settings import ServedModel
from serving.gateway.api.tokenizer import Tokenizer
from serving.gateway.api.tools.family import Family, OutputParser
from serving.gateway.api.tools.lark import Spelling
from serving.gateway.api.tools.marks import ToolMarks
from serving.gateway.api.tools.reader import Schemas
from serving.grammar.compile import Grammars
from serving.grammar.matcher import Matcher
from serving.values.sequence import Grammar
from tests.cases.tool_parsing import Parsed, put_together

STORYTELLER = Path(__file__).parents[2] / "deploy/models/storyteller"
STOP = 0


class FamilyVocabulary:
    """One family's vocabulary, with its markers as tokens or as text."""

    def __init__(self, family: Family, *, as_tokens: bool) -> None:
        raw = RawTokenizer.from_file(str(STORYTELLER / "tokenizer.json"))
        if as_tokens:
            names = [name for name in family.marks if name != "<function="]
            raw.add_tokens([AddedToken(name, normalized=False, special=False) for name in names])
        self.family = family
        self.tokenizer = Tokenizer.from_raw(raw, {})
        self.size = self.tokenizer.vocab_size
        tokens = {token.content: number for number, token in raw.get_added_tokens_decoder().items()}
        self.marks: ToolMarks = family.marks_of(tokens)
        self.spelling = Spelling(self.marks, self.size)
        self.grammars = Grammars(lambda: self.tokenizer.vocabulary(self.size))

    def matcher(self, grammar: Grammar) -> Matcher:
        """A matcher of a new output."""
        return Matcher(self.grammars.fresh(grammar), self.size, (STOP,))

    def accepts(self, grammar: Grammar, text: str) -> bool:
        """Whether an output may be this text, markers in it as tokens, and end after it."""
        matcher = self.matcher(grammar)
        for token in self.tokenizer.encode(text, add_special_tokens=False):
            if not matcher.allowed()[token]:
                return False
            matcher.take((token,))
        return bool(matcher.allowed()[STOP])

    def drawn(self, grammar: Grammar, seed: int, begins: str = "", most: int = 3000) -> list[int]:
        """A random output, which ends as soon as possible. Raises: AssertionError if it does not end."""
        random = np.random.default_rng(seed)
        matcher, output = self.matcher(grammar), self.tokenizer.encode(begins, add_special_tokens=False)
        matcher.take(output)
        while len(output) < most:
            allowed = matcher.allowed()
            if allowed[STOP]:
                return output
            token = int(random.choice(np.flatnonzero(allowed)))
            matcher.take((token,))
            output.append(token)
        raise AssertionError(self.tokenizer.decode(output, skip_special_tokens=False))

    def read(self, output: list[int], tools: Schemas, *, opened: bool = False) -> Parsed:
        """Content, reasoning and calls of an output."""
        parser = OutputParser(self.family, self.marks, tools, opened=opened)
        detokenizer = make_detokenizer(self.tokenizer, skip_special_tokens=False)
        parts = []
        for token in output:
            if token in self.marks.of_token:
                parts += parser.token(token)
            else:
                parts += parser.text(detokenizer.push((token,)))
        return put_together([*parts, *parser.end()])


@cache
def vocabulary_of(family: Family, *, as_tokens: bool = True) -> FamilyVocabulary:
    """A family's vocabulary."""
    return FamilyVocabulary(family, as_tokens=as_tokens)


def may_begin(model: ServedModel, grammar: Grammar, text: str) -> bool:
    """Whether an output may start with this text, markers in it as tokens."""
    matcher = Matcher(model.grammars.fresh(grammar), model.token_limit, model.eos_ids)
    for token in model.tokenizer.encode(text, add_special_tokens=False):
        if not matcher.allowed()[token]:
            return False
        matcher.take((token,))
    return True
