"""Continuations: tokens as the harness cuts them, probabilities as the plainest pass gives them."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from serving.errors import ConfigError
from serving.gateway.api.tokenizer import Tokenizer
from serving.model.loader import load_model
from serving.tools.evaluate.loglikelihood import Continuation, encode_pair, loglikelihoods
from serving.tools.evaluate.scorer import PrefixGroup, Scorer
from serving.tools.evaluate.tasks.accuracy import TaskAccuracy, accuracy, picks
from serving.tools.evaluate.tasks.questions import TaskQuestion
from tests.model.reference import ReferenceGenerator


def ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def test_where_a_continuation_begins(tokenizer: Tokenizer) -> None:
    # " the" is one token, which a blank left at the context's end would break.
    found = encode_pair(tokenizer, "see ", "the", 100)
    assert found.targets == ids(tokenizer, " the")
    assert found == encode_pair(tokenizer, "see", " the", 100)
    assert len(found.targets) == 1
    assert found.fed == ids(tokenizer, "see")
    found = encode_pair(tokenizer, "x", "y z", 100)
    assert (*found.fed, found.targets[-1]) == ids(tokenizer, "xy z")
    assert found.targets == ids(tokenizer, "y z")
    assert not found.cut
    found = encode_pair(tokenizer, "abcdefgh", "xyz", 5)
    assert found == Continuation(ids(tokenizer, "fghxy"), ids(tokenizer, "xyz"), cut=True)
    assert encode_pair(tokenizer, "abc", "xyz", 5) == Continuation(
        ids(tokenizer, "abcxy"), ids(tokenizer, "xyz"), cut=False
    )
    assert encode_pair(tokenizer, "", "xyz", 9).fed == (tokenizer.eos_id, *ids(tokenizer, "xy"))
    nameless = Tokenizer.from_raw(tokenizer.raw, {})
    with pytest.raises(ConfigError, match="the tokenizer names none"):
        encode_pair(nameless, "  ", "xyz", 9)
    with pytest.raises(ConfigError, match=re.escape("the continuation '' has no token of its own")):
        encode_pair(tokenizer, "x", "", 9)
    with pytest.raises(ConfigError, match="a continuation of 3 tokens does not fit a context of 2"):
        encode_pair(tokenizer, "x", "abc", 2)


LONG = "It was a long day, and the cat sat on the mat in the house and did nothing at all. "
QUESTIONS = [
    [("What is it?", " the thing"), ("What is it?", " x"), ("What is it?", " y")],
    [("", "and"), ("So", " so on")],
    [(LONG, "Then the cat ran away."), (LONG, "Then it ran."), (LONG, "!"), (LONG + "And", " more")],
    [(LONG + "a", " b"), ("b" + LONG, " b")],
]


@pytest.mark.parametrize("batch", [1, 2, 50])
def test_probabilities_equal_the_plainest_pass(checkpoint: Path, tokenizer: Tokenizer, batch: int) -> None:
    asked = [[encode_pair(tokenizer, *pair, 90) for pair in question] for question in QUESTIONS]
    told: list[int] = []
    context = max(len(one.fed) for question in asked for one in question)
    found = loglikelihoods(Scorer(load_model(checkpoint), context=context, batch=batch), asked, told.append)
    assert sum(told) == 11
    assert (len(told) == 1) == (batch == 50)
    plain = ReferenceGenerator(checkpoint)
    for question, values in zip(asked, found, strict=True):
        for one, value in zip(question, values, strict=True):
            logprobs = plain.logits(list(one.fed)).log_softmax(-1)[-len(one.targets) :]
            own = logprobs[torch.arange(len(one.targets)), list(one.targets)]
            assert value == pytest.approx(float(own.sum()), abs=1e-4)


class CountingScorer(Scorer):
    """Counts the tokens that it is fed."""

    fed = 0

    def hidden(self, groups: Sequence[PrefixGroup]) -> list[list[torch.Tensor]]:
        self.fed += sum(len(group.shared) + sum(map(len, group.rests)) for group in groups)
        return super().hidden(groups)


def test_what_is_common_is_fed_once(checkpoint: Path) -> None:
    context = tuple(range(10, 43))  # 33 tokens: two blocks, and one that predicts the first target

    def asked(*targets: tuple[int, ...]) -> list[Continuation]:
        return [Continuation((*context, *one[:-1]), one, cut=False) for one in targets]

    def fed(*targets: tuple[int, ...]) -> int:
        scorer = CountingScorer(load_model(checkpoint), context=48, batch=2)
        loglikelihoods(scorer, [asked(*targets)])
        return scorer.fed

    assert fed((7,), (8,), (9,)) == 33, "choices of one token need nothing but the context"
    assert fed((7, 1, 2), (8, 1, 2), (9, 1)) == 32 + 3 + 3 + 2
    assert fed(*((i, 1, 2) for i in range(50, 58))) == 2 * (32 + 4 * 3), "the cache has no room for more at once"


def test_accuracy_and_its_normalised_form() -> None:
    pairs = (("", "a"), ("", "bbbb"))
    question = TaskQuestion(pairs, ("a", "bbbb"), frozenset({1}))
    assert picks(question, [-2.0, -4.0]) == (0, 1), "per character the longer choice is the likelier"
    assert picks(question, [-2.0, -2.0]) == (0, 1)
    assert picks(question, [-1.0, -4.0]) == (0, 0), "the first one on a tie"
    none = TaskQuestion(pairs, ("a", "bbbb"), frozenset())
    both = TaskQuestion(pairs, ("a", "bbbb"), frozenset({0, 1}))
    found = accuracy([question, none, both, question], [(0, 1), (0, 1), (0, 0), (1, 1)])
    assert found == TaskAccuracy(0.5, pytest.approx((1 / 12) ** 0.5), 0.75, pytest.approx(0.25))  # type: ignore[arg-type]
