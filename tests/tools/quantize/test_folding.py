"""Folds do not change the output, and floating-point parts keep their form without rounding."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from serving.model.architecture import ClampedGate, LatentShape
from serving.model.config import read_architecture
from serving.model.layers import swiglu
from serving.model.loader import open_checkpoint
from serving.model.tensors import block_tensors
from serving.tools.quantize.folding import Folded, fold_layer
from serving.tools.quantize.layer import fill_experts
from serving.tools.quantize.quantize_run import stored_as
from serving.tools.quantize.stream import LayerRunner, Windows
from serving.tools.quantize.structure import Fold, Producer, Product, Structure, block_structure
from serving.tools.quantize.tensors_in_memory import InputRecorder, read_tensors
from serving.tools.quantize.trial import layer_parts
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.shapes import CHOOSING, QWEN2
from tests.tools.quantize.matrices import FAMILY_KEYS, V2


class Layer:
    """One layer of a random model and its inputs."""

    def __init__(self, folder: Path, layer: int, **overrides: object) -> None:
        write_random_checkpoint(folder, dtype="bfloat16", **overrides)  # type: ignore[arg-type]
        self.config = read_architecture(folder)
        self.layer = layer
        checkpoint, _ = open_checkpoint(self.config, folder, None)
        self.tensors = read_tensors(checkpoint, frozenset(block_tensors(self.config, layer)))
        self.structure = block_structure(self.config, layer)
        generator = torch.Generator().manual_seed(0)
        self.runner = LayerRunner(self.config, Windows(torch.zeros(3, 33, dtype=torch.int64)))
        self.hidden = torch.randn(96, self.config.hidden_size, generator=generator)
        self.hidden[:, ::8] *= 20
        self.recorder = InputRecorder()
        self.output = self.run(self.tensors, self.recorder)

    def run(self, tensors: dict[str, Tensor], recorder: InputRecorder | None = None) -> Tensor:
        with torch.inference_mode():
            return self.runner.block(layer_parts(self.config, {**tensors}, recorder).block(self.layer), self.hidden)

    def folded(self, structure: Structure) -> Folded:
        with torch.inference_mode():
            return fold_layer(self.tensors, structure, structure.products, self.recorder.inputs(), search=False)


BIASED = {"rope_interleave": False, "attention_bias": True}


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize(
    "overrides", [{}, V2, BIASED, CHOOSING, *FAMILY_KEYS.values()], ids=["v3", "v2", "biased", "sparse", *FAMILY_KEYS]
)
def test_a_folded_layer_computes_the_same(tmp_path: Path, layer: int, overrides: dict[str, object]) -> None:
    given = Layer(tmp_path, layer, **overrides)
    found = given.folded(given.structure)
    tensors = {name: tensor for name, tensor in found.tensors.items() if isinstance(tensor, Tensor)}
    torch.testing.assert_close(given.run(tensors), given.output, rtol=1e-5, atol=1e-5)
    changed = [name for name, tensor in tensors.items() if not torch.equal(tensor, given.tensors[name])]
    assert any("input_layernorm" in name for name in changed)
    values = "kv_b_proj" if isinstance(given.config.attention, LatentShape) else "v_proj"
    assert any(values in name for name in changed)
    assert any("up_proj" in name for name in changed)


@pytest.mark.parametrize(("overrides", "count"), [({}, 6), (QWEN2, 5)], ids=["v3", "qwen2"])
def test_what_stays_in_floating_point_is_not_rounded(tmp_path: Path, overrides: dict[str, object], count: int) -> None:
    """V3: four norms, the router, its bias. Qwen2: two norms, the biases of queries, keys and values."""
    given = Layer(tmp_path, 1, **overrides)
    quantised = {name + ".weight" for product in given.structure.products for name in product.matrices}
    kept = 0
    for name, tensor in given.folded(given.structure).tensors.items():
        assert isinstance(tensor, Tensor)
        stored = stored_as(name, tensor, "F32" if name.endswith("correction_bias") else "BF16", "bfloat16")
        assert isinstance(stored, Tensor)
        if name not in quantised:
            kept += 1
            torch.testing.assert_close(stored.float(), tensor, rtol=1e-6, atol=0)  # bfloat16 would round at 4e-3
    assert kept == count


def test_a_kept_producer_is_divided_by_powers_of_two_and_its_bias_too(tmp_path: Path) -> None:
    given = Layer(tmp_path, 1, **QWEN2)
    wanted = [product for product in given.structure.products if product.operator != "attention_in"]
    prefix = "model.layers.1.self_attn."
    inputs = given.recorder.inputs()
    inputs[prefix + "o_proj"][:, ::8] *= 30
    with torch.inference_mode():
        found = fold_layer(given.tensors, given.structure, wanted, inputs, search=False)
    octaves = (given.tensors[prefix + "v_proj.bias"] / torch.as_tensor(found.tensors[prefix + "v_proj.bias"])).log2()
    assert torch.equal(octaves, octaves.round())
    assert octaves.any()


@pytest.mark.parametrize("overrides", [{}, QWEN2], ids=["v3", "qwen2"])
def test_each_fold_alone_is_neutral_and_divides_its_inputs(tmp_path: Path, overrides: dict[str, object]) -> None:
    given = Layer(tmp_path, 1, **overrides)
    for fold in given.structure.folds:
        found = given.folded(Structure(given.structure.products, (fold,)))
        tensors = {name: tensor for name, tensor in found.tensors.items() if isinstance(tensor, Tensor)}
        recorder = InputRecorder()
        torch.testing.assert_close(given.run(tensors, recorder), given.output, rtol=1e-5, atol=1e-5)
        before, after = given.recorder.inputs(), recorder.inputs()
        for name in {product.recorded for product in fold.products} & before.keys():
            torch.testing.assert_close(after[name], before[name] / found.inputs[name], rtol=1e-4, atol=1e-5)


def test_behind_a_fold_that_a_kept_product_shares_scales_are_powers_of_two(tmp_path: Path) -> None:
    given = Layer(tmp_path, 1)
    wanted = [product for product in given.structure.products if product.operator != "shared_experts"]
    with torch.inference_mode():
        found = fold_layer(given.tensors, given.structure, wanted, given.recorder.inputs(), search=False)
    shared = found.inputs["model.layers.1.mlp.shared_experts.gate_up"].log2()
    assert torch.equal(shared, shared.round())
    own = found.inputs["model.layers.1.self_attn.into"].log2()
    assert not torch.equal(own, own.round())
    assert "model.layers.1.mlp.shared_experts.down_proj" not in found.inputs


def test_the_router_is_compensated(tmp_path: Path) -> None:
    given = Layer(tmp_path, 1)
    gate = "model.layers.1.mlp.gate.weight"
    found = given.folded(given.structure)
    scale = found.inputs["model.layers.1.mlp.experts.0.gate_up"]
    assert not scale.eq(1).all()
    assert torch.equal(torch.as_tensor(found.tensors[gate]), given.tensors[gate] * scale)


HIDDEN, WIDTH = 8, 6
GATE = "mlp.gate"


def expert(number: int) -> tuple[Product, Product]:
    prefix = f"mlp.experts.{number}."
    into = Product(prefix + "gate_up", (prefix + "gate_proj", prefix + "up_proj"), number)
    return into, Product(prefix + "down_proj", (prefix + "down_proj",), number)


def layer() -> tuple[Structure, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Two experts: the first saw 20 rows, the second none."""
    products = (*expert(0), *expert(1))
    generator = torch.Generator().manual_seed(0)
    shapes = {"gate_proj": (WIDTH, HIDDEN), "up_proj": (WIDTH, HIDDEN), "down_proj": (HIDDEN, WIDTH)}
    tensors = {
        f"mlp.experts.{e}.{name}.weight": torch.randn(shape, generator=generator)
        for e in range(2)
        for name, shape in shapes.items()
    }
    rows = torch.randn(20, HIDDEN, generator=generator)
    inputs = {GATE: rows, "mlp.experts.0.gate_up": rows, "mlp.experts.0.down_proj": torch.ones(20, WIDTH)}
    return Structure(products, (Fold((Producer("norm"),), products[:1]),)), tensors, inputs


def test_an_expert_without_rows_gets_the_layers() -> None:
    structure, tensors, inputs = layer()
    assert fill_experts(tensors, structure, inputs, GATE) == {0: 20, 1: 0}
    pooled = inputs["mlp.experts.1.gate_up"]
    assert pooled.shape == (HIDDEN, HIDDEN)  # as many rows as it has channels
    weight = torch.cat([tensors[f"mlp.experts.1.{name}.weight"] for name in ("gate_proj", "up_proj")])
    assert torch.equal(inputs["mlp.experts.1.down_proj"], swiglu(pooled @ weight.T))


def test_what_it_is_given_has_its_biases_and_its_gate() -> None:
    structure, tensors, inputs = layer()
    clamped = ClampedGate(alpha=1.7, limit=0.5)
    biases = {f"mlp.experts.1.{name}.bias": torch.arange(WIDTH) * 0.1 for name in ("gate_proj", "up_proj")}
    fill_experts(tensors | biases, structure, inputs, GATE, clamped)
    weight = torch.cat([tensors[f"mlp.experts.1.{name}.weight"] for name in ("gate_proj", "up_proj")])
    outer = inputs["mlp.experts.1.gate_up"] @ weight.T + torch.cat(list(biases.values()))
    assert torch.equal(inputs["mlp.experts.1.down_proj"], swiglu(outer, clamped))


def test_an_expert_with_few_rows_keeps_them() -> None:
    structure, tensors, inputs = layer()
    before = dict(inputs)
    fill_experts(tensors, structure, inputs, GATE)
    assert all(inputs[name] is rows for name, rows in before.items())
    structure, tensors, inputs = layer()
    own = torch.full((3, HIDDEN), 7.0)
    inputs |= {"mlp.experts.1.gate_up": own, "mlp.experts.1.down_proj": torch.ones(3, WIDTH)}
    assert fill_experts(tensors, structure, inputs, GATE)[1] == 3
    assert torch.equal(inputs["mlp.experts.1.gate_up"][:3], own)
    assert inputs["mlp.experts.1.gate_up"].shape[0] == inputs["mlp.experts.1.down_proj"].shape[0] == HIDDEN
