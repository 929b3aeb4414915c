"""Engines in turns: every shape is measured on every engine before the next shape, and all of that several times.

Other load on the machine then affects all engines alike. Every other round takes the engines in reverse, so that
none always follows the same neighbour.
"""

import subprocess
import time
from collections.abc import Mapping, Sequence

from tests.benchmarks.conditions import progress
from tests.benchmarks.engine_figures.book import Book, Shape
from tests.benchmarks.engine_figures.engines import Engine, EngineFailedError, Open

_SETTLE_S = 0.1
"""Pause between two engines, in which the workers of the previous one go to sleep."""


def measure(openers: Mapping[str, Open], shapes: Sequence[Shape], rounds: int, samples: int, book: Book) -> None:
    """Start engines, measure all shapes of one model on all of them, end them. Failed ones are recorded as absent."""
    engines = _start(openers, book)
    try:
        for number in range(rounds):
            for shape in shapes:
                names = list(engines)
                for name in names if number % 2 == 0 else reversed(names):
                    _ask(engines, name, shape, samples, book)
                found = {engine: book.best(engine, shape) for engine in book.engines()}
                rates = ", ".join(f"{engine} {rate:,.0f}" for engine, rate in found.items() if rate is not None)
                progress(f"round {number + 1}/{rounds}, {shape}, tokens/s so far: {rates}")
    finally:
        for engine in engines.values():
            engine.close()


def _start(openers: Mapping[str, Open], book: Book) -> dict[str, Engine]:
    engines: dict[str, Engine] = {}
    for name, opener in openers.items():
        progress(f"starting {name}")
        try:
            engines[name] = opener()
        except (EngineFailedError, OSError, RuntimeError, ValueError) as error:
            book.absent[name] = one_line(error)
            progress(f"{name} is absent: {book.absent[name]}")
    return engines


def _ask(engines: dict[str, Engine], name: str, shape: Shape, samples: int, book: Book) -> None:
    engine = engines[name]
    try:
        for _ in range(samples):
            time.sleep(_SETTLE_S)
            rate = engine.decode(shape.size) if shape.phase == "decode" else engine.prefill(shape.size)
            book.add(name, shape, [rate])
    except (EngineFailedError, OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        book.absent[name] = f"failed in {shape}: {one_line(error)}"
        progress(f"{name} {book.absent[name]}")
        engine.close()
        del engines[name]


def one_line(error: BaseException) -> str:
    """The end of an error message, without line breaks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[-300:]
