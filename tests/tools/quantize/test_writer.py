"""Form of the quantised checkpoint: what stays as it is, its configuration, and the files that go along."""

from pathlib import Path

import torch

from serving.tools.quantize.writer import companions, quantised_config, stored_as


def test_what_belongs_to_a_model_goes_along(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    belonging = ("LICENSE", "chat_template.jinja", "tokenization_kimi.py", "tokenizer.json")
    others = ("README.md", "train.py", "config.json", "model.safetensors.index.json", "old.safetensors")
    for name in (*belonging, *others):
        (model / name).write_text(name)
    (tmp_path / "secret.json").write_text("mine")
    (model / "link.json").symlink_to(tmp_path / "secret.json")
    assert [path.name for path in companions(model)] == sorted(belonging)


def test_floating_tensors_keep_their_form() -> None:
    given = torch.tensor([1.0, 3.0])
    forms = {name: stored_as("a.weight", given, name, "bfloat16") for name in ("BF16", "F16", "F32", "F8_E4M3")}
    dtypes = {name: form.dtype for name, form in forms.items() if isinstance(form, torch.Tensor)}
    expected = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F8_E4M3": torch.bfloat16}
    assert dtypes == expected
    assert stored_as("model.layers.1.mlp.gate.weight", given, "BF16", "bfloat16") is given


def test_the_configuration_replaces_an_older_quantisation() -> None:
    raw = {"tie_word_embeddings": True, "quantization_config": {"quant_method": "fp8"}, "x": 1}
    found = quantised_config(raw, frozenset(), untie=False)
    assert (found["tie_word_embeddings"], found["x"]) == (True, 1)
    assert found["quantization_config"]["quant_method"] == "compressed-tensors"  # type: ignore[index]
    assert quantised_config(raw, frozenset(), untie=True)["tie_word_embeddings"] is False
