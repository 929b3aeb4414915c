"""Profile of an engine: step times on a device for prefill and decode, and the host's cost per step.

The device files are fitted to one engine, whose steps they predict. Another engine's step takes so many times as long,
and a fixed time more: that is its profile, found from its own measured steps (`engine_fit`), valid where they were.
Other known times (host time, captured graphs, sampling) are stated by the user, not fitted.
"""

import itertools
import json
import math
from bisect import bisect_left
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hardware.cost.device_file import check_keys, nearest
from hardware.cost.engine_kernels import EngineKernels, kernels_text, read_kernels
from hardware.cost.loads import DecodeLoad
from hardware.errors import SpecError
from hardware.nesting import parse_toml
from hardware.regular_file import read_regular_text

DECODE_RANGES = ("batch_per_npu", "context_tokens", "dies", "drafts")
PREFILL_RANGES = ("tokens_per_die", "prompt_tokens", "dies", "cached_share")
"""What a fitted region is stated in: sequences per NPU; tokens that a die computes in a step; shares of a prompt."""


@dataclass(frozen=True, slots=True)
class FittedRange:
    """One quantity of the measured steps, from its smallest to its largest value."""

    name: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class EnginePhase:
    """Steps of one kind.

    Attributes:
        work: factor on the step time by the device's own calibration.
        step_s: added to each step [s]: host, scheduler, graph launch.
        token_s: added for each token that the fullest die computes [s]: sampling, detokenisation.
        rows: measured steps that this was fitted to; parameters: that were found from them.
        expected_error: relative, inside of what was fitted.
        region: ranges of the rows, in the order of `DECODE_RANGES` or `PREFILL_RANGES`.
        source: origin of the rows.
        host_step_s: the host prepares each step for so long [s]: scheduler, input tensors, launch.
        host_sequence_s: and for so long more for each sequence [s]; only of decode, as all that follow but the next.
        overlapped: the host prepares the next step while the device computes, so that the slower one determines the
        time; else both. sampling_sequence_s: the engine's own sampling, for each sequence [s]. graph_batches: sequences
        for which graphs are captured, rising; a smaller batch is padded up to the next one. Padding has no cache and no
        expert computation. Empty = any batch runs as it is. eager_step_s: added to a step beyond the largest graph [s].
    """

    work: float
    step_s: float
    token_s: float
    rows: int
    parameters: int
    expected_error: float
    region: tuple[FittedRange, ...]
    source: str
    host_step_s: float = 0.0
    host_sequence_s: float = 0.0
    overlapped: bool = False
    sampling_sequence_s: float = 0.0
    graph_batches: tuple[int, ...] = ()
    eager_step_s: float = 0.0

    def seconds(self, base_s: float, tokens: float, sequences: float = 0.0) -> float:
        """Duration of a step [s].

        Args:
            base_s: by the device's own calibration, of a padded batch.
            tokens: that the fullest die computes.
            sequences: of the fullest die or group, without padding; only decode has them.
        """
        fitted_s = self.work * base_s + self.step_s + self.token_s * tokens
        if not self.stated:
            return fitted_s
        device_s = fitted_s + self.sampling_sequence_s * sequences + self.eager_s(sequences)
        host_s = self.host_s(sequences)
        return max(device_s, host_s) if self.overlapped else device_s + host_s

    @property
    def stated(self) -> bool:
        """Whether anything was stated by hand."""
        return bool(self.host_step_s or self.host_sequence_s or self.sampling_sequence_s or self.graph_batches)

    def host_s(self, sequences: float) -> float:
        """Time in which the host prepares a step [s]."""
        return self.host_step_s + self.host_sequence_s * sequences

    def eager_s(self, sequences: float) -> float:
        """Additional time of a step without a graph [s]."""
        return self.eager_step_s if self.graph_batches and sequences > self.graph_batches[-1] else 0.0

    def padded(self, load: DecodeLoad) -> DecodeLoad:
        """A decode step's load as the captured graphs run it."""
        graphs = self.graph_batches
        if not graphs or not 0 < load.requests < graphs[-1]:
            return load
        batch = graphs[bisect_left(graphs, load.requests)]
        if batch == load.requests:
            return load
        mean = load.requests if load.mean_requests is None else load.mean_requests
        return replace(load, requests=float(batch), mean_requests=mean)


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One engine file.

    Attributes:
        name: of the file, without its ending.
        title: for people.
        device: that the rows are of; model: the rows' model.
        formats: of the rows' weights and KV; empty = 8-bit weights and BF16, as all published ones.
        kernels: of its own, in place of the device file's values.
        decode / prefill: None = steps of that kind are unknown, and the device's own calibration is used.
    """

    name: str
    title: str
    device: str
    model: str
    decode: EnginePhase | None
    prefill: EnginePhase | None
    formats: str = ""
    kernels: EngineKernels = field(default_factory=dict)


# Reads and writes engine profiles (TOML) strictly: every key is known, every mistake gets one clear line.

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
            f"no engine named {text!r}{nearest(text, engine_names())}; there are: {', '.join(engine_names())}; "
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
    owner = f"engine {name}"
    try:
        raw = parse_toml(text)
    except ValueError as error:
        raise SpecError(f"{owner}: no TOML: {error}") from error
    check_keys(owner, "", raw, _WORDS, optional=("formats", "kernels", *_RANGES))
    for key in (*_WORDS, *({"formats"} & raw.keys())):
        if not isinstance(raw[key], str) or not raw[key].strip():
            raise SpecError(f"engine {name}: {key} is {raw[key]!r}; it must be a name")
    if not any(kind in raw for kind in (*_RANGES, "kernels")):
        raise SpecError(f"engine {name}: neither [decode] nor [prefill] nor [kernels]: it defines no step")
    phases = {kind: _phase(name, kind, raw[kind]) if kind in raw else None for kind in _RANGES}
    formats, kernels = raw.get("formats", ""), read_kernels(name, raw.get("kernels", {}))
    return EngineProfile(
        name, raw["title"], raw["device"], raw["model"], phases["decode"], phases["prefill"], formats, kernels
    )


def _phase(name: str, kind: str, raw: object) -> EnginePhase:
    if not isinstance(raw, dict):
        raise SpecError(f"engine {name}: {kind} must be a table, written [{kind}]")
    needed = [one.name for one in fields(EnginePhase) if one.name not in _STATED]
    check_keys(f"engine {name}", f"{kind}.", raw, needed, optional=_STATED if kind == "decode" else _OF_PREFILL)
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
    check_keys(f"engine {name}", f"{kind}.region.", raw, _RANGES[kind])
    return tuple(_range(name, kind, key, raw[key]) for key in _RANGES[kind])


def _range(name: str, kind: str, key: str, raw: object) -> FittedRange:
    ends: list[Any] = raw if isinstance(raw, list) else []
    numbers = len(ends) == 2 and all(type(end) in (int, float) and 0 <= end < math.inf for end in ends)
    if not numbers or ends[0] > ends[1]:
        raise SpecError(f"engine {name}: {kind}.region.{key} is {raw!r}; it must be [smallest, largest]")
    return FittedRange(key, float(ends[0]), float(ends[1]))


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
        for one in fields(EnginePhase):
            value = getattr(phase, one.name)
            if one.name in _STATED and value == one.default:
                continue
            if one.name in ("overlapped", "graph_batches"):
                lines.append(f"{one.name} = {json.dumps(value)}")
            elif one.name == "source":
                lines.append(f"source = {json.dumps(value, ensure_ascii=False)}")
            elif one.name != "region":
                lines.append(f"{one.name} = {value:.6g}")
        lines += ["", f"[{kind}.region]"]
        lines += [f"{one.name} = [{one.low:.10g}, {one.high:.10g}]" for one in phase.region]
    lines += kernels_text(profile.kernels)
    return "\n".join(lines) + "\n"
