"""Accuracy figures and the page."""

import json
import math
from pathlib import Path

import torch
from torch import Tensor

from serving.model.config import read_architecture
from serving.tools.quantize.layer import ProductError
from serving.tools.quantize.quantize_report import QuantizationReport, TrialResult, as_json, as_markdown, class_errors
from serving.tools.quantize.quantize_run import companions, quantised_config, stored_as
from serving.tools.quantize.quantize_settings import Settings
from serving.tools.quantize.stream import read_text
from serving.tools.quantize.structure import Product
from serving.tools.quantize.trial import ModelAccuracy, Original, measure


class Given(Original):
    """A model with given logits."""

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
        model="m", steps=("fold",), kept=(), text="a.txt", random_text=False, calibration_tokens=7000,
        held_out_tokens=1000, window_tokens=512, seed=3, bytes_before=2_000_000, bytes_after=1_000_000,
        elapsed_s=61.0, perplexity=10.0, trials={"chosen": trial}, expert_rows={1: {0: 5, 1: 11}},
    )  # fmt: skip
    page = as_markdown(report)
    assert "| chosen | 10.1000 | 1.01000 | 1.00e-03 | 5.00e-04 | 99.10 % |  | 2.000 % |" in page
    assert "| 1 | 5 | 8 | 11 |" in page
    assert "1.91 MiB before, 977 KiB after (50.0 %)" in page
    assert "7,000 tokens to calibrate and 1,000 held out, in windows of 512, seed 3" in page
    assert json.loads(as_json(report))["trials"]["chosen"]["accuracy"]["agreement"] == 0.991


def test_what_goes_along_with_a_model(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    belonging = ("LICENSE", "chat_template.jinja", "tokenization_kimi.py", "tokenizer.json")
    others = ("README.md", "train.py", "config.json", "model.safetensors.index.json", "old.safetensors")
    for name in (*belonging, *others):
        (model / name).write_text(name)
    (tmp_path / "secret.json").write_text("mine")
    (model / "link.json").symlink_to(tmp_path / "secret.json")
    assert [path.name for path in companions(model)] == sorted(belonging)

    given = torch.tensor([1.0, 3.0])
    forms = {name: stored_as("a.weight", given, name, "bfloat16") for name in ("BF16", "F16", "F32", "F8_E4M3")}
    dtypes = {name: form.dtype for name, form in forms.items() if isinstance(form, torch.Tensor)}
    expected = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F8_E4M3": torch.bfloat16}
    assert dtypes == expected
    assert stored_as("model.layers.1.mlp.gate.weight", given, "BF16", "bfloat16") is given

    raw = {"tie_word_embeddings": True, "quantization_config": {"quant_method": "fp8"}, "x": 1}
    found = quantised_config(raw, frozenset(), untie=False)
    assert (found["tie_word_embeddings"], found["x"]) == (True, 1)
    assert found["quantization_config"]["quant_method"] == "compressed-tensors"  # type: ignore[index]
    assert quantised_config(raw, frozenset(), untie=True)["tie_word_embeddings"] is False


def rows(ids: torch.Tensor) -> set[tuple[int, ...]]:
    return {tuple(row) for row in ids.tolist()}


def test_text_is_cut_into_windows_one_in_eight_of_them_held_out(original: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The quick brown fox. " * 400)
    config = read_architecture(original)
    found = read_text(original, config, [tmp_path / "a.txt"], Settings(tokens=1024, window=64))
    assert (found.calibration.length, found.held_out.length) == (64, 64)
    assert found.calibration.tokens == 14 * 64
    assert found.held_out.tokens == 2 * 64
    assert not found.is_random
    assert torch.equal(found.calibration.fed.view(14, 64)[:, 1:], found.calibration.next.view(14, 64)[:, :-1])


def test_windows_are_drawn_by_the_seed_and_held_out_ones_not_calibrated_with(original: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"Story {n} of {n * 7919 % 1000}. "}) for n in range(1000)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    config = read_architecture(original)

    def drawn(seed: int) -> set[tuple[int, ...]]:
        settings = Settings(tokens=512, window=32, seed=seed)
        return rows(read_text(original, config, [tmp_path / "a.jsonl"], settings).calibration.ids)

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)

    (tmp_path / "a.txt").write_text(" ".join(str(n * n) for n in range(3000)))
    config = read_architecture(original)
    found = read_text(original, config, [tmp_path / "a.txt"], Settings(tokens=4096, window=32))
    assert not rows(found.calibration.ids) & rows(found.held_out.ids)


def test_short_and_no_texts(original: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" ".join(str(n) for n in range(60)))
    config = read_architecture(original)
    found = read_text(original, config, [tmp_path / "a.txt"], Settings())
    assert 16 <= found.calibration.length < 64
    assert found.held_out.ids.shape[0] >= 1
    config = read_architecture(original)
    found = read_text(original, config, [], Settings(tokens=2048, window=64))
    assert found.is_random
    assert int(found.calibration.ids.max()) < config.vocab_size
    assert found.calibration.tokens + found.held_out.tokens == 2048
