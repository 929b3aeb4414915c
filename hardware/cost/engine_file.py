"""Reads and writes engine profiles (TOML) strictly: every key is known, every mistake gets one clear line."""

import difflib
import itertools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from hardware.cost.engine_profile import DECODE_RANGES, PREFILL_RANGES, EnginePhase, EngineProfile, FittedRange
from hardware.errors import SpecError
from hardware.nesting import parse_toml
from hardware.regular_file import read_regular_text

ENGINE_FOLDER = Path(__file__).parent / "engines"
OWN_ENGINE = "cloudmatrix-infer"
"""Engine that the Ascend 910C's calibration is of: with its profile all times stay the same."""
_RANGES = {"decode": DECODE_RANGES, "prefill": PREFILL_RANGES}
_WORDS = ("title", "device", "model")
_COUNTS = ("rows", "parameters")
_STATED = ("host_step_s", "host_sequence_s", "overlapped", "sampling_sequence_s", "graph_batches", "eager_step_s")
_OF_PREFILL = ("host_step_s", "overlapped")
"""Keys that may be left out; steps of prefill know no sequences."""


def engine_names() -> tuple[str, ...]:
    """Shipped engines, in alphabetical order. Effects: lists one folder."""
    return tuple(sorted(path.stem for path in ENGINE_FOLDER.glob("*.toml")))


def load_engine(name_or_path: str | Path) -> EngineProfile:
    """Read an engine profile by its name, or from a file of your own.

    Args:
        name_or_path: one of `engine_names()`, or a path that ends in `.toml`.
    Raises: SpecError, in one line, if there is no such engine or its file is wrong.
    Effects: reads one file.
    """
    text = str(name_or_path)
    path = Path(text) if text.endswith(".toml") else ENGINE_FOLDER / f"{text}.toml"
    if not text.endswith(".toml") and text not in engine_names():
        raise SpecError(
            f"no engine named {text!r}{_nearest(text, engine_names())}; there are: {', '.join(engine_names())}; "
            "or name a .toml file of your own (`cloudmatrix cost --fit` writes one)"
        )
    try:
        return parse_engine(read_regular_text(path), path.stem)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def parse_engine(text: str, name: str) -> EngineProfile:
    """Read a profile from the text of its file.

    Args:
        name: what to call it, in messages too.
    Raises: SpecError naming the first wrong key or value.
    """
    try:
        raw = parse_toml(text)
    except ValueError as error:
        raise SpecError(f"engine {name}: no TOML: {error}") from error
    _check_keys(name, "", raw, _WORDS, optional=("formats", *_RANGES))
    for key in (*_WORDS, *({"formats"} & raw.keys())):
        if not isinstance(raw[key], str) or not raw[key].strip():
            raise SpecError(f"engine {name}: {key} is {raw[key]!r}; it must be a name")
    if not any(kind in raw for kind in _RANGES):
        raise SpecError(f"engine {name}: neither [decode] nor [prefill]: it defines no step")
    phases = {kind: _phase(name, kind, raw[kind]) if kind in raw else None for kind in _RANGES}
    formats = raw.get("formats", "")
    return EngineProfile(name, raw["title"], raw["device"], raw["model"], phases["decode"], phases["prefill"], formats)


def _phase(name: str, kind: str, raw: object) -> EnginePhase:
    if not isinstance(raw, dict):
        raise SpecError(f"engine {name}: {kind} must be a table, written [{kind}]")
    needed = [field.name for field in fields(EnginePhase) if field.name not in _STATED]
    _check_keys(name, f"{kind}.", raw, needed, optional=_STATED if kind == "decode" else _OF_PREFILL)
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key == "region":
            values[key] = _region(name, kind, value)
        elif key == "source":
            if not isinstance(value, str) or not value.strip():
                raise SpecError(f"engine {name}: {kind}.source must name the origin of the rows")
            values[key] = value
        elif key == "graph_batches":
            values[key] = _graphs(name, f"{kind}.{key}", value)
        elif key == "overlapped":
            if not isinstance(value, bool):
                raise SpecError(f"engine {name}: {kind}.overlapped is {value!r}; it must be true or false")
            values[key] = value
        else:
            values[key] = _number(name, f"{kind}.{key}", value)
    phase = EnginePhase(**values)
    if phase.overlapped and not (phase.host_step_s or phase.host_sequence_s):
        raise SpecError(f"engine {name}: {kind}.overlapped needs the host's time: state {kind}.host_step_s")
    if phase.eager_step_s and not phase.graph_batches:
        raise SpecError(f"engine {name}: {kind}.eager_step_s is beyond the largest graph: state {kind}.graph_batches")
    return phase


def _graphs(name: str, key: str, value: object) -> tuple[int, ...]:
    sizes: list[Any] = value if isinstance(value, list) else []
    whole = bool(sizes) and all(type(size) is int and size > 0 for size in sizes)
    if not whole or any(later <= size for size, later in itertools.pairwise(sizes)):
        raise SpecError(
            f"engine {name}: {key} is {value!r}; it must be rising whole numbers of sequences, as [1, 2, 4]"
        )
    return tuple(sizes)


def _number(name: str, key: str, value: object) -> float:
    last = key.partition(".")[2]
    above = last in ("work", "expected_error", *_COUNTS)
    good = isinstance(value, int if last in _COUNTS else int | float) and not isinstance(value, bool)
    if not good or not (0 < value if above else 0 <= value) or not value < math.inf:  # type: ignore[operator]
        wanted = f"{'whole ' * (last in _COUNTS)}number {'above' if above else 'of at least'} 0"
        raise SpecError(f"engine {name}: {key} is {value!r}; it must be a {wanted}")
    return value  # type: ignore[return-value]


def _region(name: str, kind: str, raw: object) -> tuple[FittedRange, ...]:
    if not isinstance(raw, dict):
        raise SpecError(f"engine {name}: {kind}.region must be a table, written [{kind}.region]")
    _check_keys(name, f"{kind}.region.", raw, _RANGES[kind])
    return tuple(_range(name, kind, key, raw[key]) for key in _RANGES[kind])


def _range(name: str, kind: str, key: str, raw: object) -> FittedRange:
    ends: list[Any] = raw if isinstance(raw, list) else []
    numbers = len(ends) == 2 and all(type(end) in (int, float) and 0 <= end < math.inf for end in ends)
    if not numbers or ends[0] > ends[1]:
        raise SpecError(f"engine {name}: {kind}.region.{key} is {raw!r}; it must be [smallest, largest]")
    return FittedRange(key, float(ends[0]), float(ends[1]))


def _check_keys(
    name: str, prefix: str, raw: Mapping[str, object], known: Iterable[str], *, optional: tuple[str, ...] = ()
) -> None:
    needed = list(known)
    for key in raw:
        if key not in (*needed, *optional):
            raise SpecError(f"engine {name}: unknown key {prefix}{key}{_nearest(key, (*needed, *optional))}")
    for key in needed:
        if key not in raw:
            raise SpecError(f"engine {name}: {prefix}{key} is missing")


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]}?)" if near else ""


def engine_text(profile: EngineProfile) -> str:
    """The text of a profile's file, which `parse_engine` reads back."""
    lines = [f"{key} = {json.dumps(getattr(profile, key), ensure_ascii=False)}" for key in _WORDS]
    if profile.formats:
        lines.append(f"formats = {json.dumps(profile.formats)}")
    for kind in _RANGES:
        phase: EnginePhase | None = getattr(profile, kind)
        if phase is None:
            continue
        lines += ["", f"[{kind}]"]
        for field in fields(EnginePhase):
            value = getattr(phase, field.name)
            if field.name in _STATED and value == field.default:
                continue
            if field.name in ("overlapped", "graph_batches"):
                lines.append(f"{field.name} = {json.dumps(value)}")
            elif field.name == "source":
                lines.append(f"source = {json.dumps(value, ensure_ascii=False)}")
            elif field.name != "region":
                lines.append(f"{field.name} = {value:.6g}")
        lines += ["", f"[{kind}.region]"]
        lines += [f"{one.name} = [{one.low:.10g}, {one.high:.10g}]" for one in phase.region]
    return "\n".join(lines) + "\n"
