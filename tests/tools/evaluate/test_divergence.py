"""Scores of windows equal those of the plainest pass, for any batch, chunks and block of rows."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from serving.errors import ConfigError, EngineError
from serving.gateway.api.tokenizer import Tokenizer
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model
from serving.tools.evaluate.loglikelihood import Continuation, encode_pair, loglikelihoods
from serving.tools.evaluate.perplexity import divergence, score_windows, sum_up
from serving.tools.evaluate.scorer import PrefixGroup, Scorer, sequences
from serving.tools.evaluate.tasks.questions import TaskAccuracy, TaskQuestion, accuracy, picks
from serving.tools.evaluate.texts import Text, cut_windows
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.reference import ReferenceGenerator

CONTEXT, STRIDE = 24, 10


def document(length: int, seed: int) -> list[int]:
    return torch.randint(6, 320, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


DOCUMENTS = [document(90, 1), document(5, 2), document(41, 3)]
WINDOWS = [window for tokens in DOCUMENTS for window in cut_windows(tokens, CONTEXT, STRIDE)]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("other"), seed=1)


def plain_logprobs(folder: Path) -> list[torch.Tensor]:
    """Per window, log-probabilities `[targets, vocab]` in float64."""
    plain = ReferenceGenerator(folder)
    logits = [plain.logits(list(window.tokens))[window.first_row :] for window in WINDOWS]
    return [rows.double().log_softmax(-1) for rows in logits]


class FewRows(Scorer):
    """Takes logits a few rows at a time."""

    @property
    def rows_at_once(self) -> int:
        return 7


@pytest.mark.parametrize(("batch", "chunk"), [(1, 0), (4, 0), (3, 2), (64, 10)])
def test_scores_equal_the_plainest_pass(checkpoint: Path, other: Path, batch: int, chunk: int) -> None:
    model = FewRows(load_model(checkpoint), context=CONTEXT, batch=batch, chunk=chunk)
    reference = Scorer(load_model(other), context=CONTEXT, batch=batch, chunk=chunk)
    scores = list(score_windows(WINDOWS, model, reference))
    for window, score, own, theirs in zip(
        WINDOWS, scores, plain_logprobs(checkpoint), plain_logprobs(other), strict=True
    ):
        rows = torch.arange(len(window.targets))
        assert score.nats == pytest.approx(-own[rows, list(window.targets)].numpy(), abs=1e-4)
        assert score.reference_nats == pytest.approx(-theirs[rows, list(window.targets)].numpy(), abs=1e-4)
        assert score.divergence == pytest.approx((theirs.exp() * (theirs - own)).sum(-1).numpy(), abs=1e-4)
        assert score.agreement.tolist() == (own.argmax(-1) == theirs.argmax(-1)).double().tolist()


def test_the_figures_of_a_text(checkpoint: Path, other: Path) -> None:
    models = [Scorer(load_model(folder), context=CONTEXT, batch=4) for folder in (checkpoint, other)]
    scores = list(score_windows(WINDOWS, *models))
    text = Text("some", tuple(map(tuple, DOCUMENTS)), nbytes=500, words=90)
    result = sum_up("some", [text], scores)
    nats = np.concatenate([score.nats for score in scores])
    assert (result.documents, result.tokens) == (3, 133) == (3, len(nats))
    assert result.perplexity.value == pytest.approx(math.exp(nats.mean()))
    assert result.bits_per_byte == pytest.approx(nats.sum() / math.log(2) / 500)
    assert result.per_word == pytest.approx(math.exp(nats.sum() / 90))
    compared = result.compared
    assert compared is not None
    assert compared.ratio.value == pytest.approx(result.perplexity.value / compared.perplexity.value)
    kl = np.concatenate([score.divergence for score in scores])
    assert compared.divergence.value == pytest.approx(kl.mean())
    assert (compared.divergence_p99, compared.divergence_max) == (np.quantile(kl, 0.99), kl.max())
    assert compared.divergence_median < compared.divergence_p99 <= compared.divergence_max
    assert compared.agreement.value == np.concatenate([score.agreement for score in scores]).mean() < 0.5


def test_a_model_against_itself(checkpoint: Path) -> None:
    model = load_model(checkpoint)
    scorers = [Scorer(model, context=CONTEXT, batch=4) for _ in range(2)]
    for score in score_windows(WINDOWS, *scorers):
        assert score.divergence.max() == 0
        assert score.agreement.min() == 1
        assert np.array_equal(score.nats, score.reference_nats)

    model = load_model(checkpoint)
    scorers = [Scorer(model, context=CONTEXT, batch=4, kv_dtype=kind) for kind in ("int8", "auto")]
    scores = list(score_windows(WINDOWS, *scorers))
    kl = np.concatenate([score.divergence for score in scores])
    assert 1e-6 < kl.mean() < 1e-2


def test_what_is_not_compared_or_fails(checkpoint: Path) -> None:
    scores = list(score_windows(WINDOWS[:2], Scorer(load_model(checkpoint), context=CONTEXT, batch=1), None))
    assert [len(score.divergence) + len(score.reference_nats) + len(score.agreement) for score in scores] == [0, 0]
    assert sum_up("some", [Text("some", (), 1, 0)], scores).per_word is None
    assert sum_up("some", [Text("some", (), 1, 0)], scores).compared is None
    scorer = Scorer(load_model(checkpoint), context=CONTEXT, batch=1)
    scorer._cache = KvCache(scorer.model.config, 2, 16, torch.bfloat16)  # the model's rows do not fit
    with pytest.raises(EngineError, match="lower --batch"):
        scorer.hidden(sequences([(6, 7)]))


def test_divergence_of_distributions() -> None:
    reference, model = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.25, 0.5, 0.25]])
    assert divergence(reference.log(), model.log()).tolist() == pytest.approx([0.5 * math.log(2)])
    assert divergence(model.log(), reference.log()).tolist() == [math.inf]
    assert divergence(reference.log(), reference.log()).tolist() == [0.0]


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
    with pytest.raises(ConfigError, match="the tokenizer has none"):
        encode_pair(nameless, "  ", "xyz", 9)
    with pytest.raises(ConfigError, match=re.escape("the continuation '' adds no token")):
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
