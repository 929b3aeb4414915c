"""Dispatch, grouped compute and combine as separate steps; the gate's choice."""

from dataclasses import replace

import pytest
import torch

from serving.model.architecture import Architecture, ClampedGate, GateShape
from serving.model.config import read_architecture
from serving.model.experts import Gate, GroupedExperts, LocalExperts, Routing, combine, dispatch
from serving.model.layers import swiglu
from serving.model.linear import PlainLinear
from tests.model.random_checkpoint import write_random_checkpoint


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Architecture:
    return read_architecture(write_random_checkpoint(tmp_path_factory.mktemp("model")))


def test_dispatch_groups_rows_by_expert_and_a_clamped_gate_opens_by_its_rule() -> None:
    x = torch.tensor([[1.0], [2.0], [3.0]])
    routing = Routing(torch.tensor([[2, 0], [0, 3], [3, 2]]), torch.tensor([[1.0, 10.0], [1.0, 10.0], [1.0, 10.0]]))
    sent = dispatch(x, routing, 4)
    assert sent.rows[:, 0].tolist() == [1, 2, 1, 3, 2, 3]
    assert sent.counts.tolist() == [2, 0, 2, 2]
    home = combine(sent.rows, sent.places, routing.weights)
    assert home[:, 0].tolist() == [11, 22, 33]
    gate_up = torch.tensor([[0.5, 9.0, -9.0, 0.25, 9.0, -9.0]])
    gate, up = torch.tensor([0.5, 2.0, -9.0]), torch.tensor([0.25, 2.0, -2.0])
    wanted = (up + 1) * gate * (1.5 * gate).sigmoid()
    assert torch.allclose(swiglu(gate_up, ClampedGate(alpha=1.5, limit=2.0))[0], wanted)


def test_local_experts_compute_each_group_with_its_own_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    gate_up = torch.randn(3, 4, 5, generator=generator)
    down = torch.randn(3, 5, 2, generator=generator)
    experts = LocalExperts([PlainLinear(w) for w in gate_up], [PlainLinear(w) for w in down])
    rows = torch.randn(4, 5, generator=generator)
    found = experts(rows, torch.tensor([1, 0, 3]))
    for row, expert in enumerate([0, 2, 2, 2]):
        expected = swiglu(rows[row : row + 1] @ gate_up[expert].T) @ down[expert].T
        assert torch.allclose(found[row], expected[0], atol=1e-6)


def test_grouped_experts_give_the_same_without_a_look_at_the_counts() -> None:
    generator = torch.Generator().manual_seed(1)
    gate_up = torch.randn(4, 16, 32, generator=generator).bfloat16()
    down = torch.randn(4, 32, 8, generator=generator).bfloat16()
    rows, counts = torch.randn(7, 32, generator=generator).bfloat16(), torch.tensor([3, 0, 0, 4])
    local = LocalExperts([PlainLinear(w) for w in gate_up], [PlainLinear(w) for w in down])
    assert torch.allclose(GroupedExperts(gate_up, down)(rows, counts), local(rows, counts), rtol=0.02, atol=0.5)


def test_grouped_experts_add_their_biases_and_clamp_their_gates() -> None:
    generator = torch.Generator().manual_seed(2)
    gate_up = torch.randn(4, 16, 32, generator=generator).bfloat16() / 4
    down = torch.randn(4, 32, 8, generator=generator).bfloat16() / 4
    biases = torch.randn(4, 16, generator=generator).bfloat16(), torch.randn(4, 32, generator=generator).bfloat16()
    rows, counts = torch.randn(7, 32, generator=generator).bfloat16(), torch.tensor([3, 0, 0, 4])
    clamped = ClampedGate(alpha=1.7, limit=1.0)
    first, second = (
        [PlainLinear(*one) for one in zip(weights, some, strict=True)]
        for weights, some in zip((gate_up, down), biases, strict=True)
    )
    found = GroupedExperts(gate_up, down, biases, clamped)(rows, counts)
    assert torch.allclose(found, LocalExperts(first, second, clamped)(rows, counts), rtol=0.02, atol=0.05)


def gate_of(config: Architecture) -> GateShape:
    assert config.experts is not None
    return config.experts.gate


def test_the_gate_keeps_to_the_best_groups_and_its_bias_chooses_but_does_not_weigh(config: Architecture) -> None:
    """Expert 7 has the best score, but its group's other expert is poor: two good ones in another group win."""
    shape = replace(gate_of(config), groups=4, kept_groups=1)
    scores = torch.tensor([0.1, 0.1, 0.8, 0.7, 0.1, 0.1, 0.01, 0.9])
    gate = Gate(shape, 2, PlainLinear(torch.logit(scores)[:, None]), torch.zeros(8))
    routing = gate(torch.ones(1, 1))
    assert set(routing.experts[0].tolist()) == {2, 3}
    assert routing.weights.sum().item() == pytest.approx(shape.factor)
    shape = replace(gate_of(config), groups=1, kept_groups=1, normalise=False)
    bias = torch.zeros(8)
    bias[5] = 3.0
    routing = Gate(shape, 1, PlainLinear(torch.zeros(8, 1)), bias)(torch.ones(1, 1))
    assert routing.experts.tolist() == [[5]]
    assert routing.weights.item() == pytest.approx(0.5 * shape.factor)
