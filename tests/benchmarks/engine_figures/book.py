"""Measurements: samples by engine and shape, and the Markdown tables of them. A figure is the best of its samples.

Other programs only ever slow an interval down, so the best of several intervals, taken in turns with
the other engines', describes an engine best.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

Phase = Literal["decode", "prefill"]


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """Decode steps of `size` sequences, or one prompt of `size` tokens, on a checkpoint."""

    model: str
    phase: Phase
    size: int

    def __str__(self) -> str:
        what = {"decode": "batch", "prefill": "tokens"}[self.phase]
        return f"{self.model} {self.phase} {what} {self.size}"


@dataclass(slots=True)
class Book:
    """Tokens per second of every engine in every shape. `absent`: engine -> why it is not measured."""

    samples: dict[tuple[str, Shape], list[float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def add(self, engine: str, shape: Shape, values: Iterable[float]) -> None:
        """Record samples [tokens/s]."""
        self.samples.setdefault((engine, shape), []).extend(values)

    def best(self, engine: str, shape: Shape) -> float | None:
        """The figure [tokens/s]; None when it was not measured."""
        values = self.samples.get((engine, shape))
        return max(values) if values else None

    def engines(self) -> list[str]:
        """Names, in the order in which they were first recorded, then the absent ones."""
        return list(dict.fromkeys([*(engine for engine, _ in self.samples), *self.absent]))

    def shapes(self) -> list[Shape]:
        """Every shape that any engine was measured in, in order."""
        return sorted({shape for _, shape in self.samples})

    def as_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes the same book."""
        samples = [{"engine": e, **asdict(s), "tokens_per_s": values} for (e, s), values in self.samples.items()]
        return {"samples": samples, "absent": self.absent}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """The book from the output of `as_json`."""
        book = cls(absent=dict(plain["absent"]))
        for entry in plain["samples"]:
            book.add(entry["engine"], Shape(entry["model"], entry["phase"], entry["size"]), entry["tokens_per_s"])
        return book
