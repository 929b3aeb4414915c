"""Division of one instance's work over its dies: what stays the same from step to step, one value for each role.

Default values are the published placement: attention data-parallel in decode, laid out in prefill as the device file
says, LM head whole on every die, one expert-parallel group of all dies.
"""

from dataclasses import dataclass

from hardware.cost.device_model import DeviceModel, PrefillAttention
from hardware.cost.model_shape import ModelShape
from hardware.errors import SpecError


@dataclass(frozen=True, slots=True)
class Parallelism:
    """One instance's degrees.

    Attributes:
        attention_tp: dies that share their sequences, each with its part of the heads and of dense feed-forwards.
        head_tp: dies that share the LM head, each with its part of the vocabulary.
        prefill_attention: layout in place of the device file's; None = that one, or groups where `attention_tp` is
            above 1. Only prefill asks for it.
    """

    attention_tp: int = 1
    head_tp: int = 1
    prefill_attention: PrefillAttention | None = None

    def __post_init__(self) -> None:
        for name in ("attention_tp", "head_tp"):
            value = getattr(self, name)
            if value < 1:
                raise SpecError(f"{name} is {value}; it must be a whole number of dies from 1 up")
        if self.attention_tp > 1 and self.prefill_attention not in (None, "data-parallel"):
            raise SpecError(
                f"prefill_attention {self.prefill_attention} is over all dies: it has no attention_tp of "
                f"{self.attention_tp}; name one of them"
            )

    def prefill_layout(self, device: DeviceModel) -> PrefillAttention:
        """Layout of prefill's attention: between groups of `attention_tp` dies, each has its own prompts.

        Effects: none.
        """
        if self.attention_tp > 1:
            return "data-parallel"
        return self.prefill_attention or device.layout.prefill_attention

    def check(self, device: DeviceModel, shape: ModelShape) -> None:
        """Check that a model can be divided like this on a device.

        Raises: SpecError for heads that do not divide, or groups beyond the scale-up fabric.
        Effects: none.
        """
        tp, most = self.attention_tp, round(device.links.scale_up_dies)
        if not shape.attention.splits_into(tp):
            kv_heads = getattr(shape.attention, "kv_heads", None)
            of_kv = f" and {kv_heads} KV heads" if kv_heads else ""
            heads = f"{shape.attention.heads} heads{of_kv}"
            raise SpecError(f"attention_tp is {tp}, which does not divide the {heads} of {shape.name}")
        for name in ("attention_tp", "head_tp"):
            if getattr(self, name) > most:
                joined = f"the scale-up fabric of {device.name} joins {most}"
                raise SpecError(f"{name} is {getattr(self, name)}, but {joined} dies: give it {most} at most")

    def check_dies(self, device: DeviceModel, dies: int) -> None:
        """Check that an instance of some dies has whole groups, and a layout over all of them the links for it.

        Raises: SpecError if not.
        Effects: none.
        """
        layout, most = self.prefill_attention, round(device.links.scale_up_dies)
        if layout not in (None, "data-parallel") and dies > most:
            raise SpecError(
                f"prefill_attention {layout} is over {dies} dies, but the scale-up fabric of {device.name} joins {most}"
            )
        for name in ("attention_tp", "head_tp"):
            if dies % getattr(self, name):
                raise SpecError(f"{name} is {getattr(self, name)}, which does not divide an instance of {dies} dies")

    @property
    def unmeasured(self) -> str:
        """Names of what no published row has, for a person; empty for the published placement."""
        named = (
            (self.attention_tp > 1, f"attention TP {self.attention_tp}"),
            (self.head_tp > 1, f"LM-head TP {self.head_tp}"),
            (self.prefill_attention is not None, f"{self.prefill_attention} attention in prefill"),
        )
        return ", ".join(text for is_so, text in named if is_so)


WHOLE = Parallelism()
"""The published placement."""


def die_attention_weights(shape: ModelShape, tp: int) -> float:
    """Weights of one layer's attention that one of `tp` dies has, without its indexer.

    Effects: none.
    """
    split = shape.absorbed_weights + shape.output_weights
    return shape.attention.die_prolog_weights(shape.hidden, tp) + split / tp
