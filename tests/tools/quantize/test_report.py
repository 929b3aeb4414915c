"""Accuracy figures and the page."""

import json
import math

import torch
from torch import Tensor

from serving.tools.quantize.accuracy import ModelAccuracy, measure
from serving.tools.quantize.layer import ProductError
from serving.tools.quantize.report import as_json, as_markdown
from serving.tools.quantize.result import QuantizationReport, TrialResult, class_errors
from serving.tools.quantize.structure import Product
from serving.tools.quantize.trial import Original


class Given(Original):
    """A model whose logits are known."""

    def __init__(self, logits: Tensor, drafted: Tensor | None = None) -> None:
        self.given = logits
        self.drafted = [] if drafted is None else [drafted]

    def logits(self, rows: slice) -> Tensor:
        return self.given[rows]


def test_accuracy_is_what_it_says() -> None:
    exact = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]).log()
    other = torch.tensor([[0.25, 0.5, 0.25], [0.25, 0.5, 0.25]]).log()
    drafts = torch.tensor([1, 2, 0, 0])
    trials = {"same": Given(exact, drafts), "other": Given(other, torch.tensor([1, 2, 1, 0]))}
    perplexity, found = measure(Given(exact, drafts), trials, torch.tensor([0, 0]))
    assert math.isclose(perplexity, 8**0.5, rel_tol=1e-6)
    same = found["same"]
    assert (same.divergence, same.median_divergence, same.agreement, same.draft_agreement) == (0, 0, 1, 1)
    assert math.isclose(found["other"].perplexity, 4, rel_tol=1e-6)
    assert math.isclose(found["other"].divergence, 0.25 * math.log(2) / 2, rel_tol=1e-6)
    assert found["other"].median_divergence == 0
    assert (found["other"].agreement, found["other"].draft_agreement) == (0.5, 0.75)


def test_class_errors_are_means_over_products() -> None:
    experts = [Product(f"{e}", (f"model.layers.1.mlp.experts.{e}.down_proj",), e) for e in range(3)]
    head = Product("lm_head", ("lm_head",))
    errors = [ProductError(experts[0], 1, 100), ProductError(experts[1], 9, 100), ProductError(head, 1, 4)]
    found = class_errors([*errors, ProductError(experts[2], 0, 0)])  # an expert that no held-out token reached
    assert list(found) == ["experts", "head"]
    assert math.isclose(found["experts"], 0.2)
    assert math.isclose(found["head"], 0.5)


def test_page_and_data_tell_the_same() -> None:
    trial = TrialResult(ModelAccuracy(10.1, 1e-3, 5e-4, 0.991, None), {"experts": 0.01, "head": 0.03})
    report = QuantizationReport(
        model="m",
        steps=("fold",),
        kept=(),
        text="a.txt",
        random_text=False,
        calibration_tokens=7000,
        held_out_tokens=1000,
        window_tokens=512,
        seed=3,
        bytes_before=2_000_000,
        bytes_after=1_000_000,
        elapsed_s=61.0,
        perplexity=10.0,
        trials={"chosen": trial},
        expert_rows={1: {0: 5, 1: 11}},
    )
    page = as_markdown(report)
    assert "| chosen | 10.1000 | 1.01000 | 1.00e-03 | 5.00e-04 | 99.10 % |  | 2.000 % |" in page
    assert "| 1 | 5 | 8 | 11 |" in page
    assert "1.91 MiB before, 977 KiB after (50.0 %)" in page
    assert "7,000 tokens to calibrate and 1,000 held out, in windows of 512, seed 3" in page
    assert json.loads(as_json(report))["trials"]["chosen"]["accuracy"]["agreement"] == 0.991
