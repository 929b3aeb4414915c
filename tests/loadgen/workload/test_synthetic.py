"""Random prompts: lengths as the tokenizer counts them, shared prefixes exact to the token."""

import itertools

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.plan import PromptMessage, Role
from loadgen.workload.calibrate import calibrate
from loadgen.workload.lengths import lengths
from loadgen.workload.local_tokenizer import LocalTokenizer
from loadgen.workload.source import Question, RandomPrompts, with_prefix
from loadgen.workload.words import PromptKind, Words


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def firsts(source: RandomPrompts, count: int, limit: int | None = None, seed: int = 3) -> list[Question]:
    generator = rng(seed)
    asker = source.open(generator)
    return [asker.first(generator, limit) for _ in range(count)]


def ids_of(question: Question, bpe: LocalTokenizer) -> list[int]:
    assert isinstance(question.prompt, str)
    ids = bpe.ids(question.prompt)
    assert ids is not None
    return ids


def test_lengths_are_what_the_tokenizer_counts(words: Words, bpe: LocalTokenizer) -> None:
    for question in firsts(RandomPrompts(words, lengths("uniform:1-60")), 60):
        assert question.exact
        # A prompt has at least the begin-of-text token and one word.
        assert len(ids_of(question, bpe)) == question.tokens >= 2


def test_the_shared_beginning_is_shared_to_the_token_and_comes_on_top(words: Words, bpe: LocalTokenizer) -> None:
    questions = firsts(RandomPrompts(words, lengths("20"), prefix_tokens=16), 8)
    ids = [ids_of(question, bpe) for question in questions]
    assert {len(tokens) for tokens in ids} == {36}
    assert len({tuple(tokens[:16]) for tokens in ids}) == 1
    for one, other in itertools.combinations(ids, 2):
        assert one[16:] != other[16:]

    generator = rng()
    asker = RandomPrompts(words, lengths("20"), prefix_tokens=16).open(generator)
    later = asker.later(generator)
    assert later.tokens == 20
    assert len(ids_of(later, bpe)) == 20 + 1


def test_a_seed_repeats_and_a_salt_changes_only_the_words(bpe: LocalTokenizer, words: Words) -> None:
    source, salted = (
        RandomPrompts(some, lengths("normal:30,9"), prefix_tokens=4) for some in (words, calibrate(bpe, salt="b"))
    )
    assert firsts(source, 9) == firsts(source, 9)
    assert firsts(source, 9) != firsts(source, 9, seed=4)
    assert [q.tokens for q in firsts(source, 9)] == [q.tokens for q in firsts(salted, 9)]
    assert not {q.prompt for q in firsts(source, 9)} & {q.prompt for q in firsts(salted, 9)}


def test_a_limit_shortens_the_question_not_the_beginning(words: Words) -> None:
    assert {q.tokens for q in firsts(RandomPrompts(words, lengths("500"), prefix_tokens=16), 5, limit=40)} == {40}
    with pytest.raises(UsageError, match="leaves no room"):
        firsts(RandomPrompts(words, lengths("5"), prefix_tokens=40), 1, limit=40)


def test_chat_sends_the_beginning_as_a_system_message(bpe: LocalTokenizer) -> None:
    words = calibrate(bpe, chat=True)
    (question,) = firsts(RandomPrompts(words, lengths("7"), prefix_tokens=5, system_role=True), 1)
    assert isinstance(question.prompt, list)
    system, user = question.prompt
    assert isinstance(system, PromptMessage)
    assert isinstance(user, PromptMessage)
    assert (system.role, user.role) == (Role.SYSTEM, Role.USER)
    assert (bpe.count(system.content) - 1, bpe.count(user.content) - 1) == (5, 7)
    assert question.tokens == 12
    (alone,) = firsts(RandomPrompts(words, lengths("7"), system_role=True), 1)
    assert isinstance(alone.prompt, str)


def test_token_ids_and_estimates(bpe: LocalTokenizer) -> None:
    words = calibrate(bpe, kind=PromptKind.IDS)
    questions = firsts(RandomPrompts(words, lengths("20"), prefix_tokens=6, system_role=True), 3)
    assert {len(question.prompt) for question in questions} == {26}
    assert {question.tokens for question in questions} == {26}
    assert len({tuple(question.prompt[:6]) for question in questions}) == 1
    (question,) = firsts(RandomPrompts(calibrate(None), lengths("13")), 1)
    assert not question.exact
    assert isinstance(question.prompt, str)
    assert len(question.prompt.split()) == 10
    # Two added tokens, a prefix of one: the prefix vanishes, and the question loses one.
    words = Words((" a", " b"), overhead_tokens=2)
    question = with_prefix(words, [(1, 1)], (2, 5), asked_tokens=5)
    assert question.tokens == question.asked_tokens == 6
    assert question.prompt == words.text(2, 4)
