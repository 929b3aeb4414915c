"""Matchers: permitted tokens, reconstruction from outputs alone, and no leaked state."""

import json
import random
from functools import cache

import jsonschema
import numpy as np
import pytest

from serving.errors import GrammarError
from serving.grammar.compile import MOST_COMPILED, Grammars
from serving.grammar.matcher import Matcher, Matchers, allowed_rows
from serving.grammar.text import MOST_TEXT
from serving.ids import SequenceId
from serving.values.sequence import Grammar, GrammarKind, SamplingParams
from serving.values.step_plan import SampleOrder
from tests.grammar.storyteller import RECORD, SCHEMA, STOP, YES, tokenizer
from tests.grammar.storyteller import grammars as storyteller_grammars


@cache
def grammars() -> Grammars:
    return storyteller_grammars()


def matcher(grammar: Grammar) -> Matcher:
    return Matcher(grammars().fresh(grammar), grammars().vocabulary.size, (STOP,))


def order(grammar: Grammar | None, output: list[int]) -> SampleOrder:
    return SampleOrder(SamplingParams(grammar=grammar, stop_token_ids=(STOP,)), (5,), output)


def drawn(grammar: Grammar, seed: int, most: int = 400) -> list[int]:
    """A random output, with its stop token."""
    output: list[int] = []
    one, rng = matcher(grammar), random.Random(seed)
    while len(output) < most and output[-1:] != [STOP]:
        output.append(int(rng.choice(np.flatnonzero(one.allowed()))))
        one.take(output[-1:])
    return output


def text(output: list[int]) -> str:
    return tokenizer().decode(output)


@pytest.mark.parametrize("seed", range(5))
def test_random_outputs_follow_their_schema_in_fixed_whitespace(seed: int) -> None:
    output = drawn(RECORD, seed)
    assert output[-1] == STOP
    value = json.loads(text(output))
    jsonschema.validate(value, SCHEMA)
    assert json.loads(text(output)) == value
    assert text(output).startswith('{"name": "')


def test_stop_tokens_are_allowed_where_an_output_is_complete_and_nowhere_else() -> None:
    one = matcher(YES)
    for token in tokenizer().encode("yes", add_special_tokens=False):
        assert not one.allowed()[STOP]
        one.take((token,))
    assert np.flatnonzero(one.allowed()).tolist() == [STOP]
    one.take((STOP,))
    assert np.flatnonzero(one.allowed()).tolist() == [STOP], "a stop token changes nothing"


def test_control_tokens_are_no_text_and_ids_without_a_token_are_never_drawn() -> None:
    allowed = matcher(Grammar(GrammarKind.REGEX, "(.|\n)*")).allowed()
    added = set(tokenizer().raw.get_added_tokens_decoder()) - {STOP}
    assert not allowed[sorted(added)].any()
    assert not allowed[tokenizer().vocab_size :].any()
    assert allowed.sum() > 2500


def test_forced_text_that_spells_a_control_token_is_text() -> None:
    spelled = tokenizer().token_string(STOP)
    output = drawn(Grammar(GrammarKind.LARK, f"start: {json.dumps('a ' + spelled)}"), 0)
    assert output.count(STOP) == 1
    assert tokenizer().decode(output[:-1], skip_special_tokens=False) == "a " + spelled


def test_a_matcher_is_rebuilt_from_any_output() -> None:
    output, name = drawn(RECORD, 7), SequenceId("a")
    kept, step = Matchers(grammars()), matcher(RECORD)
    for length in range(len(output)):
        kept.begin_step()
        anew = Matchers(grammars()).at(name, order(RECORD, output[:length]))
        same = kept.at(name, order(RECORD, output[:length]))
        assert anew is not None
        assert same is not None
        assert (anew.allowed() == same.allowed()).all()
        assert (anew.allowed() == step.allowed()).all()
        step.take(output[length : length + 1])
    other = kept.at(name, order(YES, []))
    assert other is not None
    assert not other.allowed()[output[0]], "the output is another's, so the matcher is made anew"


def test_unused_matchers_are_dropped() -> None:
    kept = Matchers(grammars())
    kept.at(SequenceId("a"), order(YES, []))
    assert kept.at(SequenceId("b"), order(None, [])) is None
    for _ in range(400):
        kept.begin_step()
    assert kept._known == {}


def test_rows_behind_guesses_end_at_the_first_that_is_forbidden() -> None:
    output = drawn(RECORD, 3)
    one = matcher(RECORD)
    rows = allowed_rows(one, output[:4])
    assert len(rows) == 5
    assert all(row[token] for row, token in zip(rows, output, strict=False))
    assert len(allowed_rows(one, [*output[:2], STOP, *output[2:4]])) == 3
    assert one.length == 0, "the matcher itself has not moved"


def test_an_output_that_does_not_follow_is_an_error() -> None:
    with pytest.raises(GrammarError):
        Matchers(grammars()).at(SequenceId("a"), order(YES, tokenizer().encode("maybe", add_special_tokens=False)))


def test_a_dead_end_is_an_error() -> None:
    clash = '{"type": "object", "properties": {"ab": {"type": "string"}}, "required": ["ab"],'
    clash += ' "patternProperties": {"^a": {"type": "integer"}}}'
    with pytest.raises(GrammarError):
        drawn(Grammar(GrammarKind.JSON_SCHEMA, clash), 0, most=30)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar(GrammarKind.REGEX, "("), "regex"),
        (Grammar(GrammarKind.LARK, "start: nowhere"), "nowhere"),
        (Grammar(GrammarKind.JSON_SCHEMA, "[1]"), "object"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "text"}'), "Invalid type"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"$ref": "#/nowhere"}'), "nowhere"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"not": {"type": "string"}}'), 'not supported: "not"'),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "string"}', whitespace_pattern="("), "regex"),
        (Grammar(GrammarKind.REGEX, "a" * (MOST_TEXT + 1)), "characters"),
    ],
)
def test_what_cannot_be_compiled_is_an_error_in_words(grammar: Grammar, words: str) -> None:
    for _ in range(2):
        with pytest.raises(GrammarError, match=words):
            grammars().fresh(grammar)


def test_few_grammars_are_kept_and_those_expected_are_there() -> None:
    one = Grammars(lambda: tokenizer().vocabulary(tokenizer().vocab_size))
    one.expect(YES)
    one.expect(YES)
    assert not one.fresh(YES).is_error()
    for number in range(MOST_COMPILED + 5):
        one.fresh(Grammar(GrammarKind.REGEX, f"a{{{number + 1}}}"))
    assert len(one._known) == MOST_COMPILED


def test_a_vocabulary_that_cannot_spell_it_is_an_error() -> None:
    plain = tokenizer().vocabulary(40)
    with pytest.raises(GrammarError):
        Grammars(lambda: plain).fresh(Grammar(GrammarKind.REGEX, "é+"))
