"""Reads `measured.csv`: measured steps of an engine, for `engine_fit`.

One row a step. Decode: its time per output token with a full, even batch. Prefill: its duration, or the rate at which
saturated instances take prompts.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hardware.errors import SpecError
from hardware.regular_file import read_regular_text

DECODE_COLUMNS = ("batch_per_npu", "context_tokens", "tpot_ms")
PREFILL_COLUMNS = ("tokens_per_die", "prompt_tokens")
PREFILL_RESULTS = ("step_ms", "tokens_per_s_per_npu")
OPTIONAL_COLUMNS = ("drafts", "acceptance", "cached_share", "source")
COLUMNS = ("phase", "dies", *DECODE_COLUMNS, *PREFILL_COLUMNS, *PREFILL_RESULTS, *OPTIONAL_COLUMNS)
MOST_ROWS = 10_000
_TITLE = "# title:"


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured step.

    Attributes:
        place: "file:line", for messages and tables.
        phase: "decode" or "prefill".
        values: by column, as far as this phase has them; defaults filled in.
        source: of the measurement, if the row has one.
    """

    place: str
    phase: str
    values: Mapping[str, float]
    source: str


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """A whole file.

    Attributes:
        title: of the engine, from a line "# title: ..."; empty without one.
    """

    title: str
    rows: tuple[MeasuredRow, ...]


def read_measured(path: Path) -> MeasuredFile:
    """Read a file.

    Raises: SpecError: one line for each bad row, with file and line.
    Effects: reads the file.
    """
    try:
        text = read_regular_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return parse_measured(text, str(path))


def parse_measured(text: str, name: str) -> MeasuredFile:
    """Read a file's text; lines starting with "#" are comments.

    Args:
        name: of the file, for messages.
    Raises: SpecError as `read_measured`.
    """
    numbered = [(at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip() and line.strip()[0] != "#"]
    if len(numbered) < 2:
        raise SpecError(f"{name}: no rows; the first line names columns, of {', '.join(COLUMNS)}")
    if len(numbered) > MOST_ROWS:
        raise SpecError(f"{name}: {len(numbered):,} rows; {MOST_ROWS:,} at most")
    header = [word.strip() for word in next(csv.reader([numbered[0][1]]))]
    unknown = [word for word in header if word not in COLUMNS]
    if unknown or len(set(header)) < len(header) or "phase" not in header:
        wrong = f"unknown column {unknown[0]!r}" if unknown else "each column once, and a column `phase`"
        raise SpecError(f"{name}:{numbered[0][0]}: {wrong}; there are: {', '.join(COLUMNS)}")
    rows, mistakes = [], []
    for at, line in numbered[1:]:
        cells = [cell.strip() for cell in next(csv.reader([line]))]
        try:
            if len(cells) != len(header):
                raise SpecError(f"{len(cells)} cells where the first line has {len(header)}")
            rows.append(_row(f"{name}:{at}", {key: cell for key, cell in zip(header, cells, strict=True) if cell}))
        except SpecError as error:
            mistakes.append(f"{name}:{at}: {error}")
    if mistakes:
        raise SpecError("\n".join(mistakes))
    titles = [line.partition(_TITLE)[2].strip() for line in text.splitlines() if line.startswith(_TITLE)]
    return MeasuredFile(titles[0] if titles else "", tuple(rows))


def _row(place: str, cells: dict[str, str]) -> MeasuredRow:
    phase, source = cells.pop("phase", ""), cells.pop("source", "")
    if phase not in ("decode", "prefill"):
        raise SpecError(f"phase is {phase!r}; it must be decode or prefill")
    needed: tuple[str, ...] = ("dies", *(DECODE_COLUMNS if phase == "decode" else PREFILL_COLUMNS))
    own = ("drafts", "acceptance") if phase == "decode" else (*PREFILL_RESULTS, "cached_share")
    for key in cells:
        if key not in (*needed, *own):
            raise SpecError(f"{key} has no meaning for a {phase} step: leave it empty")
    for key in needed:
        if key not in cells:
            raise SpecError(f"{key} is missing")
    values = {key: _value(key, cell) for key, cell in cells.items()}
    if phase == "prefill":
        if len(values.keys() & set(PREFILL_RESULTS)) != 1:
            raise SpecError(f"one of {' and '.join(PREFILL_RESULTS)} is needed, and only one")
        return MeasuredRow(place, phase, {"cached_share": 0.0, **values}, source)
    drafts = values.setdefault("drafts", 0.0)
    if bool(drafts) != ("acceptance" in values):
        raise SpecError("drafts and acceptance go together: what a step yields depends on both")
    return MeasuredRow(place, phase, {"acceptance": 0.0, **values}, source)


def _value(key: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if key in ("acceptance", "cached_share"):
        good, wanted = 0 <= value <= 1 and (key != "cached_share" or value < 1), "a share from 0 to 1"
    elif key == "drafts":
        good, wanted = 0 <= value <= 16 and value == int(value), "a whole number from 0 to 16"
    elif key == "dies":
        good, wanted = 1 <= value < math.inf and value == int(value), "a whole number above zero"
    else:
        good, wanted = 0 < value < math.inf, "a number above zero"
    if not good:
        raise SpecError(f"{key} is {cell!r}; it must be {wanted}")
    return value
