"""Division of one instance's work over its dies: what stays the same from step to step, one value for each role.

Default values are the published placement: attention data-parallel in decode, the device file's layout in prefill, LM
head whole on every die, one expert-parallel group of all dies. Or experts have dies of their own.
"""

from dataclasses import dataclass
from typing import Literal

from hardware.cost.device_model import DeviceModel, PrefillAttention
from hardware.cost.model_shape import ModelShape
from hardware.errors import SpecError

Trampolines = Literal["ranks", "direct", "peers"]
_DEGREES = ("attention_tp", "head_tp", "expert_tp")
MEASURED_REDUNDANT = 32
"""Copies beyond one of each in the published rows of DeepSeek-R1."""
MOST_COPIES = 8
"""Most copies of each expert, on average, that are priced."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """One instance's degrees.

    Attributes:
        attention_tp: dies that share their sequences, each with its part of the heads and of dense feed-forwards.
        expert_tp: dies that share each of their experts, each with its part; dispatch sends to all of them.
        head_tp: dies that share the LM head, each with its part of the vocabulary.
        prefill_attention: layout in place of the device file's; None = that one, or groups where `attention_tp` is
            above 1. Used only by prefill.
        expert_dies: of a decode instance, that hold only the routed and shared experts; the others do the
            attention and hold no experts. 0 = every die does both.
        redundant_experts: copies of routed experts beyond one of each, in an instance; None = from the device file.
            The imbalance between copies is the fitted one, regardless of their number.
        redundant_slots: replaces that number: slots per die with routed experts, in addition to its share; None =
            that number holds.
        domains: groups of attention dies that take turns at the expert dies; ignored without expert dies.
        trampolines: how attention dies address more expert dies than a domain has dies: `ranks` = as many expert dies
            forward rows to the others, and results back; `direct` = all of them; `peers` = each attention die one
            expert die, which has the gate and exchanges rows with the other expert dies. Ignored without expert dies.
    """

    attention_tp: int = 1
    head_tp: int = 1
    prefill_attention: PrefillAttention | None = None
    expert_dies: int = 0
    domains: int = 3
    expert_tp: int = 1
    redundant_experts: int | None = None
    redundant_slots: int | None = None
    trampolines: Trampolines = "ranks"

    def __post_init__(self) -> None:
        for name in _DEGREES:
            value = getattr(self, name)
            if value < 1:
                raise SpecError(f"{name} is {value}; it must be a whole number of dies from 1 up")
        if self.attention_tp > 1 and self.prefill_attention not in (None, "data-parallel"):
            raise SpecError(
                f"prefill_attention {self.prefill_attention} is over all dies: it has no attention_tp of "
                f"{self.attention_tp}; name one of them"
            )
        if self.expert_dies < 0 or self.domains < 1:
            raise SpecError(f"{self.expert_dies} expert dies and {self.domains} domains cannot be: 0 and 1 at least")
        if self.redundant_experts is not None and self.redundant_experts < 0:
            raise SpecError(f"redundant_experts is {self.redundant_experts}; it must be a whole number from 0 up")
        divided = [name for name in _DEGREES if getattr(self, name) > 1]
        if self.expert_dies and divided:
            name = divided[0]
            raise SpecError(f"{name} is {getattr(self, name)}, but with expert_dies only 1 is priced: leave one out")

    def redundant_on(self, dies: float) -> int | None:
        """Redundant copies of routed experts in a group with `dies` dies for experts; None = the device's number."""
        return self.redundant_experts if self.redundant_slots is None else self.redundant_slots * int(dies)

    def groups(self, dies: int) -> int:
        """Dies, or groups of dies that share them, that have sequences of their own, in an instance of some dies."""
        return (dies - self.expert_dies) // self.attention_tp

    def dies_of(self, groups: int) -> int:
        """Dies of an instance with so many groups."""
        return groups * self.attention_tp + self.expert_dies

    def prefill_layout(self, device: DeviceModel) -> PrefillAttention:
        """Layout of prefill's attention: between groups of `attention_tp` dies, each has its own prompts."""
        if self.attention_tp > 1:
            return "data-parallel"
        return self.prefill_attention or device.layout.prefill_attention

    def check(self, device: DeviceModel, shape: ModelShape) -> None:
        """Check that a model can be divided like this on a device.

        Raises: SpecError for heads that do not divide, groups beyond the scale-up fabric, or experts of a dense model.
        """
        if self.expert_dies and not shape.experts:
            raise SpecError(f"expert_dies is {self.expert_dies}, but {shape.name} is dense: it has no experts")
        if self.redundant_experts is not None:
            self._check_redundant(self.redundant_experts, shape)
        tp, most = self.attention_tp, round(device.links.scale_up_dies)
        if not shape.attention.splits_into(tp):
            kv_heads = getattr(shape.attention, "kv_heads", None)
            of_kv = f" and {kv_heads} KV heads" if kv_heads else ""
            heads = f"{shape.attention.heads} heads{of_kv}"
            raise SpecError(f"attention_tp is {tp}, which does not divide the {heads} of {shape.name}")
        if self.expert_tp > 1 and not shape.experts:
            raise SpecError(f"expert_tp is {self.expert_tp}, but {shape.name} is dense: it has no experts to divide")
        if shape.experts and shape.expert_width % self.expert_tp:
            of = f"the {shape.expert_width} columns of an expert of {shape.name}"
            raise SpecError(f"expert_tp is {self.expert_tp}, which does not divide {of}")
        for name in _DEGREES:
            if getattr(self, name) > most:
                joined = f"the scale-up fabric of {device.name} joins {most}"
                raise SpecError(f"{name} is {getattr(self, name)}, but {joined} dies: give it {most} at most")

    def _check_redundant(self, copies: int, shape: ModelShape) -> None:
        if not shape.experts:
            raise SpecError(f"redundant_experts is {copies}, but {shape.name} is dense: it has no experts to copy")
        most = (MOST_COPIES - 1) * shape.experts
        if copies > most:
            raise SpecError(f"redundant_experts is {copies}; for {shape.experts} experts up to {most} are priced")

    def check_dies(self, device: DeviceModel, dies: int) -> None:
        """Check that an instance of some dies has whole groups, and a layout over all of them the links for it.

        Raises: SpecError if not.
        """
        layout, most = self.prefill_attention, round(device.links.scale_up_dies)
        if layout not in (None, "data-parallel") and dies > most:
            raise SpecError(
                f"prefill_attention {layout} is over {dies} dies, but the scale-up fabric of {device.name} joins {most}"
            )
        for name in _DEGREES:
            if dies % getattr(self, name):
                raise SpecError(f"{name} is {getattr(self, name)}, which does not divide an instance of {dies} dies")
        if not self.expert_dies:
            return
        attention = dies - self.expert_dies
        if attention < 1:
            raise SpecError(
                f"expert_dies is {self.expert_dies}, which leaves no die of {dies} for attention: give the instance "
                "more dies, or fewer of them to experts"
            )
        if self.trampolines == "peers" and attention < self.domains * self.expert_dies:
            raise SpecError(
                f"trampolines = peers needs an attention die for each of {self.expert_dies} expert dies in each of "
                f"{self.domains} domains, but there are {attention}: give the instance more dies, or use ranks"
            )
        if attention % self.domains:
            raise SpecError(
                f"domains is {self.domains}, which does not divide {attention} attention dies ({dies} without the "
                f"{self.expert_dies} of experts)"
            )

    @property
    def unmeasured(self) -> str:
        """Names of what no published row has, for a person; empty for the published placement."""
        named = (
            (self.attention_tp > 1, f"attention TP {self.attention_tp}"),
            (self.head_tp > 1, f"LM-head TP {self.head_tp}"),
            (self.expert_tp > 1, f"expert TP {self.expert_tp}"),
            (
                self.redundant_experts not in (None, MEASURED_REDUNDANT),
                f"{self.redundant_experts} redundant experts, whose copies' popularity stays as fitted",
            ),
            (self.redundant_slots is not None, f"{self.redundant_slots} redundant slots of each die"),
            (self.prefill_attention is not None, f"{self.prefill_attention} attention in prefill"),
        )
        return ", ".join(text for is_so, text in named if is_so)

    @property
    def caution(self) -> str:
        """Why this division cannot be judged by published rows, for a person; empty for the published placement."""
        texts = [f"no row has {self.unmeasured}"] if self.unmeasured else []
        if self.expert_dies:
            texts.append(
                "attention and experts on dies of their own were measured in one deployment only, xDeepServe's 480 + "
                "288 dies in 3 domains; exchanges are predicted from dispatch and combine among all dies"
            )
        return "; ".join(texts)


def domains_of(dies: int, expert_dies: int, wanted: int) -> int:
    """Domains for an instance: the largest number up to `wanted` that divides its attention dies."""
    attention = dies - expert_dies
    return next((count for count in range(wanted, 0, -1) if attention % count == 0), 1)


WHOLE = Parallelism()
"""The published placement."""


def die_attention_weights(shape: ModelShape, tp: int) -> float:
    """Weights of one layer's attention that one of `tp` dies has, without its indexer."""
    split = shape.absorbed_weights + shape.output_weights
    return shape.attention.die_prolog_weights(shape.hidden, tp) + split / tp
