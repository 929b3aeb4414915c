"""One variation of the recipe applied to the model, in parallel with the original.

Layer by layer, on the *quantised prefix*: a layer is calibrated with the outputs of the quantised layers before it,
which are its inputs when served, so that compensation can also correct their errors. Inside a layer all products are
calibrated in one pass through the original layer. Held-out windows pass through the same layers, but are never used for
fitting.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from serving.model.architecture import Architecture, DenseShape, ExpertShape
from serving.model.assembly import Assembly
from serving.model.layers import RmsNorm
from serving.model.linear import Linear, LinearWeight
from serving.tools.quantize.layer import ProductError, fill_experts, product_error, quantise_layer
from serving.tools.quantize.quantize_settings import RecipeSteps
from serving.tools.quantize.stream import LayerRunner
from serving.tools.quantize.structure import Structure, head_structure
from serving.tools.quantize.tensors_in_memory import (
    CalibrationBank,
    InputRecorder,
    Tensors,
    TensorTable,
    calibration_linear,
)

HEAD = "lm_head.weight"
LAST_NORM = "model.norm.weight"


def layer_parts(config: Architecture, tensors: Tensors, recorder: InputRecorder | None = None) -> Assembly:
    """Build a layer in float32."""
    bank = CalibrationBank(recorder)
    return Assembly(config, TensorTable(tensors), bank, torch.float32, torch.device("cpu"))


@dataclass(frozen=True, slots=True)
class DraftLayer:
    """Position of a draft layer, and the model's embedding `[vocab, hidden]` for a layer without its own."""

    layer: int
    embed: Tensor


class Original:
    """The unquantised model on held-out windows."""

    def __init__(self, config: Architecture, runner: LayerRunner, hidden: Tensor) -> None:
        self._config = config
        self._runner = runner
        self.hidden = hidden
        self.drafted: list[Tensor] = []
        self._head: Linear | None = None
        self._norm: RmsNorm | None = None

    def block(self, layer: int, tensors: Mapping[str, Tensor]) -> None:
        """Compute a block."""
        self.hidden = self._runner.block(layer_parts(self._config, dict(tensors)).block(layer), self.hidden)

    def head(self, tensors: Tensors) -> None:
        """Build the last norm and the head, for `logits` and draft layers."""
        self._norm, self._head = _head_parts(self._config, tensors)

    def draft(self, draft: DraftLayer, tensors: Tensors) -> None:
        """Compute a draft layer from the model's last hidden state, and keep its logits."""
        assert self._head is not None
        self.drafted.append(_drafted(self._config, draft, tensors, self._head, self._runner, self.hidden))

    def logits(self, rows: slice) -> Tensor:
        """Logits of some held-out tokens, `[rows, vocab] float32`."""
        assert self._head is not None
        assert self._norm is not None
        return self._head(self._norm(self.hidden[rows]))


class Trial(Original):
    """The model quantised by some steps.

    Args:
        kept: operator classes that stay in floating point.
        runner, hidden: of the held-out windows. calibration, seen: of the calibration windows.
    """

    def __init__(
        self,
        config: Architecture,
        steps: RecipeSteps,
        kept: frozenset[str],
        held_out: tuple[LayerRunner, Tensor],
        calibration: tuple[LayerRunner, Tensor],
    ) -> None:
        super().__init__(config, *held_out)
        self.steps = steps
        self.kept = kept
        self._calibration, self._seen = calibration
        self.errors: list[ProductError] = []
        self.expert_rows: dict[int, dict[int, int]] = {}

    def quantise_block(self, layer: int, tensors: Mapping[str, Tensor], structure: Structure) -> Tensors:
        """Quantise a block and compute it.

        Returns: its tensors.
        """
        recorders = InputRecorder(), InputRecorder()
        for recorder, runner, hidden in zip(recorders, self._runners(), self._hiddens(), strict=True):
            runner.block(layer_parts(self._config, dict(tensors), recorder).block(layer), hidden)
        result = self._quantised(tensors, structure, recorders, self._gate(layer), layer)
        block = layer_parts(self._config, result).block(layer)
        self.hidden = self._runner.block(block, self.hidden)
        self._seen = self._calibration.block(block, self._seen)
        return result

    def quantise_head(self, tensors: Mapping[str, Tensor], *, drafts: bool) -> Tensors:
        """Quantise the head.

        Args:
            tensors: last norm and head.
            drafts: whether draft layers follow.
        """
        norm, _ = _head_parts(self._config, dict(tensors))
        recorders = InputRecorder(), InputRecorder()
        for recorder, hidden in zip(recorders, self._hiddens(), strict=True):
            recorder.add("lm_head", norm(hidden))
        result = self._quantised(tensors, head_structure(drafts=drafts), recorders, None, -1)
        self.head(result)
        return result

    def quantise_draft(self, draft: DraftLayer, tensors: Mapping[str, Tensor], structure: Structure) -> Tensors:
        """Quantise a draft layer and compute it.

        Returns: its tensors.
        """
        assert self._head is not None
        recorders = InputRecorder(), InputRecorder()
        for recorder, runner, hidden in zip(recorders, self._runners(), self._hiddens(), strict=True):
            _drafted(self._config, draft, dict(tensors), self._head, runner, hidden, recorder)
        result = self._quantised(tensors, structure, recorders, self._gate(draft.layer), draft.layer)
        self.draft(draft, result)
        return result

    def _quantised(
        self,
        tensors: Mapping[str, Tensor],
        structure: Structure,
        recorders: tuple[InputRecorder, InputRecorder],
        gate: str | None,
        layer: int,
    ) -> Tensors:
        held_out, inputs = (recorder.inputs() for recorder in recorders)
        if gate is not None:
            feed = self._config.layer(layer).feed
            clamped = feed.clamped if isinstance(feed, ExpertShape) else None
            self.expert_rows[layer] = fill_experts(tensors, structure, inputs, gate, clamped)
        result = quantise_layer(tensors, structure, self.kept, inputs, self.steps)
        self.errors += [
            product_error(product, tensors, result, held_out[product.recorded])
            for product in structure.products
            if product.operator not in self.kept and product.recorded in held_out
        ]
        return result.tensors

    def _runners(self) -> tuple[LayerRunner, LayerRunner]:
        return self._runner, self._calibration

    def _hiddens(self) -> tuple[Tensor, Tensor]:
        return self.hidden, self._seen

    def _gate(self, layer: int) -> str | None:
        return None if isinstance(self._config.layer(layer).feed, DenseShape) else f"model.layers.{layer}.mlp.gate"


def _head_parts(config: Architecture, tensors: Tensors) -> tuple[RmsNorm, Linear]:
    table = TensorTable(tensors)
    cpu = torch.device("cpu")
    norm = RmsNorm(table.tensor(LAST_NORM, torch.float32, cpu), config.rms_norm_eps)
    int8 = table.int8(HEAD, cpu)
    if int8 is None:
        return norm, calibration_linear(LinearWeight(table.tensor(HEAD, torch.float32, cpu)))
    return norm, calibration_linear(LinearWeight(int8.weight, None, int8.scale))


def _drafted(
    config: Architecture,
    draft: DraftLayer,
    tensors: Tensors,
    head: Linear,
    runner: LayerRunner,
    hidden: Tensor,
    recorder: InputRecorder | None = None,
) -> Tensor:
    """A draft layer's most likely tokens `[tokens] int64`; records its inputs, and those of a head of its own."""
    layer = layer_parts(config, tensors, recorder).draft(draft.layer, draft.embed, head)
    states = runner.draft(layer, hidden)
    return torch.cat([layer.logits(part).argmax(-1) for part in states.split(1024)])


# Distance of a quantised model from the original on held-out text: perplexity, divergence, agreement.

_ROWS = 512


@dataclass(frozen=True, slots=True)
class ModelAccuracy:
    """One model on held-out tokens.

    Args:
        perplexity: of the text.
        divergence: mean KL(original || this) of the next token's distribution [nat]; a few tokens that were routed to
            other experts can make most of it.
        median_divergence: of the tokens.
        agreement: share of tokens at which both models find the same next token most likely.
        draft_agreement: the same for the first draft layer's tokens; None without one.
    """

    perplexity: float
    divergence: float
    median_divergence: float
    agreement: float
    draft_agreement: float | None


def measure(
    original: Original, trials: Mapping[str, Original], labels: Tensor
) -> tuple[float, dict[str, ModelAccuracy]]:
    """Compare trials with the original, a few rows at a time.

    Args:
        labels: `[tokens] int64`, the held-out text's next tokens.
    Returns: the original's perplexity, and each trial's accuracy.
    """
    losses: list[Tensor] = []
    found: dict[str, list[Tensor]] = {name: [] for name in trials}
    for first in range(0, labels.shape[0], _ROWS):
        rows = slice(first, first + _ROWS)
        exact = original.logits(rows).log_softmax(-1)
        losses.append(_loss(exact, labels[rows]))
        for name, trial in trials.items():
            found[name].append(_compared(exact, trial.logits(rows).log_softmax(-1), labels[rows]))
    accuracy = {name: _accuracy(torch.cat(parts, 1), _drafts(original, trials[name])) for name, parts in found.items()}
    return _perplexity(torch.cat(losses)), accuracy


def _compared(exact: Tensor, other: Tensor, labels: Tensor) -> Tensor:
    """Loss, divergence and agreement of each token, `[3, tokens] float64`."""
    divergence = (exact.exp() * (exact - other)).sum(-1)
    agreed = exact.argmax(-1) == other.argmax(-1)
    return torch.stack([_loss(other, labels), divergence.double(), agreed.double()])


def _loss(logprobs: Tensor, labels: Tensor) -> Tensor:
    return -logprobs.gather(1, labels.unsqueeze(1)).squeeze(1).double()


def _perplexity(losses: Tensor) -> float:
    return float(losses.mean().exp())


def _drafts(original: Original, trial: Original) -> float | None:
    if not original.drafted:
        return None
    return float((original.drafted[0] == trial.drafted[0]).double().mean())


def _accuracy(tokens: Tensor, drafts: float | None) -> ModelAccuracy:
    losses, divergence, agreed = tokens
    middle = float(divergence.median())
    return ModelAccuracy(_perplexity(losses), float(divergence.mean()), middle, float(agreed.mean()), drafts)
