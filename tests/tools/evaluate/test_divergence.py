"""Scores of windows equal those of the plainest pass, whatever the batch, the chunks and the block of rows."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from serving.errors import EngineError
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model
from serving.tools.evaluate.divergence import divergence, score_windows
from serving.tools.evaluate.perplexity import sum_up
from serving.tools.evaluate.scorer import Scorer, sequences
from serving.tools.evaluate.texts import Text
from serving.tools.evaluate.windows import cut_windows
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


def test_without_a_reference_nothing_is_compared(checkpoint: Path) -> None:
    scores = list(score_windows(WINDOWS[:2], Scorer(load_model(checkpoint), context=CONTEXT, batch=1), None))
    assert [len(score.divergence) + len(score.reference_nats) + len(score.agreement) for score in scores] == [0, 0]
    assert sum_up("some", [Text("some", (), 1, 0)], scores).per_word is None
    assert sum_up("some", [Text("some", (), 1, 0)], scores).compared is None


def test_divergence_of_distributions() -> None:
    reference, model = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.25, 0.5, 0.25]])
    assert divergence(reference.log(), model.log()).tolist() == pytest.approx([0.5 * math.log(2)])
    assert divergence(model.log(), reference.log()).tolist() == [math.inf]
    assert divergence(reference.log(), reference.log()).tolist() == [0.0]


def test_a_pass_that_fails_says_what_to_do(checkpoint: Path) -> None:
    scorer = Scorer(load_model(checkpoint), context=CONTEXT, batch=1)
    scorer._cache = KvCache(scorer.model.config, 2, 16, torch.bfloat16)  # the model's rows do not fit in there
    with pytest.raises(EngineError, match="lower --batch"):
        scorer.hidden(sequences([(6, 7)]))
