"""Experts that calibration text hardly reaches."""

import torch

from serving.model.architecture import ClampedGate
from serving.model.mlp import swiglu
from serving.tools.quantize.layer import fill_experts
from serving.tools.quantize.structure import Fold, Producer, Product, Structure

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


def test_an_expert_with_rows_enough_keeps_to_them() -> None:
    structure, tensors, inputs = layer()
    before = dict(inputs)
    fill_experts(tensors, structure, inputs, GATE)
    assert all(inputs[name] is rows for name, rows in before.items())


def test_an_experts_own_rows_stay_among_them() -> None:
    structure, tensors, inputs = layer()
    own = torch.full((3, HIDDEN), 7.0)
    inputs |= {"mlp.experts.1.gate_up": own, "mlp.experts.1.down_proj": torch.ones(3, WIDTH)}
    assert fill_experts(tensors, structure, inputs, GATE)[1] == 3
    assert torch.equal(inputs["mlp.experts.1.gate_up"][:3], own)
    assert inputs["mlp.experts.1.gate_up"].shape[0] == inputs["mlp.experts.1.down_proj"].shape[0] == HIDDEN
