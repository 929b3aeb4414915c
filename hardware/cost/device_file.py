"""Reads device files (TOML) strictly: every number has a source, every mistake gets one clear line.

A number is an inline table: `hbm_bytes_per_s = { value = 1.6e12, status = "published", source = "..." }`, or the name
of a figure of the catalogue: `hbm_bytes_per_s = { figure = "DIE_HBM_RATE" }`. Sections and keys are the fields of the
dataclasses in `device_model`; unknown ones are refused with the nearest known one.
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from hardware.cost.device_model import (
    STATUSES,
    Calibration,
    Constant,
    DecodeOverlap,
    DeviceModel,
    Die,
    ExpertTable,
    Layout,
    Links,
    Loading,
    PrefillAttention,
    Status,
)
from hardware.errors import SpecError
from hardware.nesting import parse_toml
from hardware.regular_file import read_regular_text
from hardware.spec.catalog import Confidence, figures

FOLDER = Path(__file__).parent / "devices"
_STATUS: dict[Confidence, Status] = {
    Confidence.PAPER: "published",
    Confidence.SECONDARY: "published",
    Confidence.DERIVED: "derived",
    Confidence.UNVERIFIED: "assumed",
}
_SECTIONS: dict[str, type] = {
    "die": Die,
    "links": Links,
    "loading": Loading,
    "layout": Layout,
    "experts": ExpertTable,
    "calibration": Calibration,
}
_WORDS: dict[str, tuple[str, ...]] = {
    "layout.decode_overlap": get_args(DecodeOverlap),
    "layout.prefill_attention": get_args(PrefillAttention),
}
_MAY_BE_ZERO = frozenset(
    {
        "die.fp8_flops_per_s",
        "layout.redundant_share",
        "layout.shared_die_share",
        "layout.communication_cores",
        *(f"calibration.{field.name}" for field in fields(Calibration) if field.name.endswith("_s")),
        "calibration.expert_spread",
        "calibration.small_gemm_tokens",
        *(f"links.{field.name}" for field in fields(Links) if field.name.endswith("latency_s")),
    }
)


def device_names() -> tuple[str, ...]:
    """Shipped devices, in alphabetical order. Effects: lists one folder."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load_device(name_or_path: str | Path) -> DeviceModel:
    """Read a device by its name, or from a file of your own.

    Args:
        name_or_path: one of `device_names()`, or a path that ends in `.toml`.
    Raises: SpecError, in one line, if there is no such device or its file is wrong.
    Effects: reads one file.
    """
    text = str(name_or_path)
    path = Path(text) if text.endswith(".toml") else FOLDER / f"{text}.toml"
    if not text.endswith(".toml") and text not in device_names():
        raise SpecError(
            f"no device named {text!r}{nearest(text, device_names())}; there are: {', '.join(device_names())}; "
            "or name a .toml file of your own"
        )
    try:
        return parse_device(read_regular_text(path), path.stem)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def parse_device(text: str, name: str) -> DeviceModel:
    """Read a device from the text of its file.

    Args:
        name: what to call it, in messages too.
    Raises: SpecError naming the first wrong section, key or value.
    """
    try:
        raw = parse_toml(text)
    except ValueError as error:
        raise SpecError(f"device {name}: no TOML: {error}") from error
    check_keys(f"device {name}", "", raw, ["title", *_SECTIONS])
    title = raw["title"]
    if not isinstance(title, str) or not title:
        raise SpecError(f"device {name}: title is {title!r}; it must describe the device")
    constants: dict[str, Constant] = {}
    parts = {section: _section(name, section, kind, raw[section], constants) for section, kind in _SECTIONS.items()}
    device = DeviceModel(name=name, title=title, constants=constants, **parts)
    _check_together(device)
    return device


def _section(name: str, section: str, kind: Any, raw: object, constants: dict[str, Constant]) -> Any:  # noqa: ANN401
    """One dataclass from its table; its numbers are added to `constants`."""
    if not isinstance(raw, dict):
        raise SpecError(f"device {name}: {section} must be a table, written [{section}]")
    check_keys(f"device {name}", f"{section}.", raw, [field.name for field in fields(kind)])
    values: dict[str, object] = {}
    for field in fields(kind):
        key = f"{section}.{field.name}"
        if key in _WORDS:
            values[field.name] = _word(name, key, raw[field.name])
        elif kind is ExpertTable and field.name in ("degrees", "dispatch_s", "combine_s"):
            values[field.name] = _numbers(name, key, raw[field.name], constants)
        else:
            constant = constants[key] = read_constant(f"device {name}", key, raw[field.name])
            values[field.name] = constant.value
    return kind(**values)


def _word(name: str, key: str, raw: object) -> str:
    if raw not in _WORDS[key]:
        raise SpecError(f"device {name}: {key} is {raw!r}; it must be one of: {', '.join(_WORDS[key])}")
    return str(raw)


def read_constant(owner: str, key: str, raw: object) -> Constant:
    """One number with its source.

    Args:
        owner: of the number, for messages: `device NAME` or `engine NAME`.
        key: `section.name`, which decides whether zero is allowed.
    Raises: SpecError.
    """
    if not isinstance(raw, dict):
        raise SpecError(f'{owner}: {key} must be {{ value = ..., status = "...", source = "..." }}, not {raw!r}')
    if "figure" in raw:
        return _figure(owner, key, raw)
    check_keys(owner, f"{key}.", raw, ["value", "status", "source"])
    _check_source(owner, key, raw)
    value = raw["value"]
    lowest = 0.0 if key in _MAY_BE_ZERO else math.nextafter(0.0, 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value < math.inf:
        wanted = "zero or above" if key in _MAY_BE_ZERO else "above zero"
        raise SpecError(f"{owner}: {key} is {value!r}; it must be a number {wanted}")
    return Constant(float(value), raw["status"], raw["source"])


def _figure(owner: str, key: str, raw: Mapping[str, object]) -> Constant:
    """One number of the catalogue."""
    check_keys(owner, f"{key}.", raw, ["figure"])
    known, wanted = figures(), str(raw["figure"])
    if wanted not in known:
        raise SpecError(f"{owner}: {key}: the catalogue has no figure {wanted!r}{nearest(wanted, known)}")
    figure = known[wanted]
    return Constant(float(figure.value), _STATUS[figure.confidence], figure.source)


def _numbers(name: str, key: str, raw: object, constants: dict[str, Constant]) -> tuple[float, ...]:
    """A row of the table of exchanges, with one source."""
    if not isinstance(raw, dict):
        raise SpecError(f'device {name}: {key} must be {{ values = [...], status = "...", source = "..." }}')
    check_keys(f"device {name}", f"{key}.", raw, ["values", "status", "source"])
    _check_source(f"device {name}", key, raw)
    values = raw["values"]
    good = isinstance(values, list) and values and all(type(v) in (int, float) and 0 < v < math.inf for v in values)
    if not good:
        raise SpecError(f"device {name}: {key} must be a list of numbers above zero, not {values!r}")
    for degree, value in enumerate(values):
        constants[f"{key}[{degree}]"] = Constant(float(value), raw["status"], raw["source"])
    return tuple(values)


def _check_source(owner: str, key: str, raw: Mapping[str, Any]) -> None:
    if raw["status"] not in STATUSES:
        raise SpecError(f"{owner}: {key}: status is {raw['status']!r}; it must be one of: {', '.join(STATUSES)}")
    if not isinstance(raw["source"], str) or not raw["source"].strip():
        raise SpecError(f"{owner}: {key}: name the origin of the number in `source`")


def check_keys(
    owner: str, prefix: str, raw: Mapping[str, object], needed: Iterable[str], *, optional: tuple[str, ...] = ()
) -> None:
    """Exactly the needed keys, and no others than the optional ones.

    Raises: SpecError naming the first wrong one, with the nearest known one.
    """
    needed = list(needed)
    for key in raw:
        if key not in (*needed, *optional):
            raise SpecError(f"{owner}: unknown key {prefix}{key}{nearest(key, (*needed, *optional))}")
    for key in needed:
        if key not in raw:
            raise SpecError(f"{owner}: {prefix}{key} is missing")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known name that is most like a wrong one; empty if none is."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]}?)" if near else ""


def _check_together(device: DeviceModel) -> None:
    """Values that only make sense together.

    Raises: SpecError.
    """
    table, cal, name = device.experts, device.calibration, device.name
    if not len(table.degrees) == len(table.dispatch_s) == len(table.combine_s):
        raise SpecError(f"device {name}: experts: degrees, dispatch_s and combine_s must be equally long")
    if list(table.degrees) != sorted(set(table.degrees)) or not all(type(d) is int for d in table.degrees):
        raise SpecError(f"device {name}: experts.degrees must be rising whole numbers")
    if not 1 <= cal.split_low <= cal.split_high < device.die.cores and device.layout.decode_overlap == "split-cores":
        raise SpecError(f"device {name}: calibration.split_low and split_high must be within 1 .. die.cores - 1")
    if device.layout.communication_cores >= device.die.cores or device.layout.shared_die_share >= 1:
        raise SpecError(f"device {name}: layout leaves no cores, or no dies, for computation")
    check_shares(f"device {name}", cal)


def check_shares(owner: str, calibration: Calibration) -> None:
    """Refuse shares of a peak above 1.

    Raises: SpecError.
    """
    for field in fields(Calibration):
        if "utilisation" in field.name or field.name.endswith(("_efficiency", "_share")):
            if getattr(calibration, field.name) > 1:
                raise SpecError(f"{owner}: calibration.{field.name} is a share of a peak; it cannot exceed 1")
