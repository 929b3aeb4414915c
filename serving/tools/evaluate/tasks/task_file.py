"""One task file: the keys of the lm-evaluation-harness that a multiple-choice task needs, checked.

No code is run from a task file: `!function` and the keys that only take one are refused, templates are sandboxed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # it comes without types

from hardware.regular_file import read_regular_text
from serving.errors import ConfigError

Template = str | int | list[Any] | dict[str, Any]

_TEMPLATES = ("doc_to_text", "doc_to_target", "doc_to_choice")
_REFUSED = (
    *("process_docs", "process_results", "custom_dataset", "class", "use_prompt", "filter_list", "gen_prefix"),
    *("doc_to_image", "doc_to_audio"),
)
_SPLITS = ("test_split", "validation_split", "training_split", "fewshot_split")
_SAMPLERS = ("default", "first_n")
_LOCAL = ("json", "jsonl")


@dataclass(frozen=True, slots=True)
class TaskFile:
    """Content of a task file.

    Args:
        path: of the file itself; data files are relative to its folder.
        doc_to_text, doc_to_target, doc_to_choice: a column's name, a jinja2 template, or a constant.
        data_files: per split, file names or patterns.
        splits: `test_split` and so on, as far as given.
        samples: few-shot examples written into the file itself.
        metrics: names in `metric_list`; empty when there is none.
    """

    name: str
    path: Path
    doc_to_text: Template
    doc_to_target: Template
    doc_to_choice: Template
    data_files: Mapping[str, tuple[str, ...]]
    splits: Mapping[str, str]
    description: str
    target_delimiter: str
    fewshot_delimiter: str
    num_fewshot: int
    sampler: str
    samples: tuple[Mapping[str, Any], ...]
    metrics: tuple[str, ...]

    @property
    def eval_split(self) -> str:
        """The evaluated split: test, else validation."""
        return self.splits.get("test_split") or self.splits["validation_split"]

    @property
    def shot_split(self) -> str:
        """The split that examples are drawn from."""
        order = ("fewshot_split", "training_split", "validation_split", "test_split")
        return next(self.splits[key] for key in order if key in self.splits)


def find_task_files(paths: Sequence[Path]) -> list[Path]:
    """Task files among files and folders.

    Raises: ConfigError if a path is not there, or a folder holds no task.
    Effects: reads folders.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_file():
            found.append(path)
        elif path.is_dir():
            inside = [file for file in sorted(path.glob("*.y*ml")) if _is_task(file)]
            if not inside:
                raise ConfigError(f"{path} holds no task: a task is a .yaml file with the key `task`")
            found += inside
        else:
            raise ConfigError(f"no task file or folder {path}: --tasks names YAML files, or folders of them")
    return found


def read_task_file(path: Path) -> TaskFile:
    """Read and check one file, the files that it includes among it.

    Raises: ConfigError if it cannot be read, a key is missing or of the wrong type, or it needs an unsupported feature.
    """
    raw = _with_includes(path, ())
    for key in _REFUSED:
        if raw.get(key) is not None:
            raise ConfigError(f"{path}: `{key}` is not supported: prepare the data so that templates alone can read it")
    kind = raw.get("output_type", "generate_until")
    if kind != "multiple_choice":
        raise ConfigError(f"{path}: output_type is {kind!r}, and only multiple_choice is evaluated here")
    missing = [key for key in ("task", *_TEMPLATES) if raw.get(key) is None]
    if missing:
        raise ConfigError(f"{path} lacks {', '.join(f'`{key}`' for key in missing)}")
    shots = _typed(raw, "fewshot_config", dict, {}, path)
    name = _typed(raw, "task", str, "", path)
    return TaskFile(
        name=name,
        path=path,
        doc_to_text=_template(raw, "doc_to_text", path),
        doc_to_target=_template(raw, "doc_to_target", path),
        doc_to_choice=_template(raw, "doc_to_choice", path),
        data_files=_data_files(raw, path),
        splits=_splits(raw, path),
        description=_typed(raw, "description", str, "", path),
        target_delimiter=_typed(raw, "target_delimiter", str, " ", path),
        fewshot_delimiter=_typed(raw, "fewshot_delimiter", str, "\n\n", path),
        num_fewshot=_shots(raw, path),
        sampler=_sampler(shots, path),
        samples=_samples(shots, path),
        metrics=_metrics(raw, path),
    )


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Plain YAML, plus a readable refusal of the harness's own tag."""


def _refuse_function(loader: yaml.SafeLoader, node: yaml.Node) -> None:
    raise ConfigError(
        f"line {node.start_mark.line + 1}: `!function` would run code from a task file, which is not supported: prepare"
        f" the data so that templates alone can read it"
    )


_Loader.add_constructor("!function", _refuse_function)


def _load(path: Path) -> dict[str, Any]:
    try:
        value = yaml.load(read_regular_text(path), _Loader)
    except ConfigError as error:
        raise ConfigError(f"{path}, {error}") from None
    except OSError as error:
        raise ConfigError(f"cannot read the task {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that is none, not UTF-8
        text = " ".join(str(error).split())
        raise ConfigError(f"{path} is not YAML: {text}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is no task: it must hold keys and values")
    return value


def _with_includes(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """The file's keys over those of the files that it includes."""
    if path.resolve() in above:
        raise ConfigError(f"{path} includes itself")
    own = _load(path)
    included = own.pop("include", None)
    names = included if isinstance(included, list) else [] if included is None else [included]
    base: dict[str, Any] = {}
    for name in reversed(names):  # as the harness does: what is named first counts most
        base |= _with_includes(path.parent / str(name), (*above, path.resolve()))
    return base | own


def _is_task(path: Path) -> bool:
    """Whether a file of a folder is a task itself, not a base that tasks include and not a group of tasks."""
    if path.name.startswith("_") or path.suffix not in (".yaml", ".yml"):
        return False
    loaded = _load(path)
    return "group" not in loaded and isinstance(loaded.get("task"), str)


def _typed(raw: Mapping[str, Any], key: str, kind: type, default: Any, path: Path) -> Any:  # noqa: ANN401
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise ConfigError(f"{path}: `{key}` must be of type {kind.__name__}, not {value!r}")
    return value


def _template(raw: Mapping[str, Any], key: str, path: Path) -> Template:
    value = raw[key]
    kinds = (str, list, dict) if key == "doc_to_choice" else (str, int, list) if key == "doc_to_target" else (str, int)
    if not isinstance(value, kinds):
        raise ConfigError(f"{path}: `{key}` must be a column's name or a template, not {value!r}")
    return value


def _splits(raw: Mapping[str, Any], path: Path) -> dict[str, str]:
    splits = {key: _typed(raw, key, str, "", path) for key in _SPLITS if raw.get(key)}
    if "test_split" not in splits and "validation_split" not in splits:
        raise ConfigError(f"{path} lacks `test_split` or `validation_split`: which part of the data to evaluate")
    return splits


def _data_files(raw: Mapping[str, Any], path: Path) -> dict[str, tuple[str, ...]]:
    source = raw.get("dataset_path")
    if source not in _LOCAL:
        raise ConfigError(
            f"{path}: dataset_path is {source!r}, but nothing is downloaded: save the data as JSONL, set"
            f" `dataset_path: json` and name it in `dataset_kwargs: {{data_files: {{test: FILE}}}}`"
        )
    files = _typed(raw, "dataset_kwargs", dict, {}, path).get("data_files")
    if isinstance(files, str | list):
        files = {"train": files}  # the only split of a plain list in the harness
    if not isinstance(files, dict) or not files:
        raise ConfigError(f"{path} lacks `data_files` in `dataset_kwargs`: per split, the file that holds it")
    return {
        str(split): tuple(str(name) for name in (names if isinstance(names, list) else [names]))
        for split, names in files.items()
    }


def _shots(raw: Mapping[str, Any], path: Path) -> int:
    count: int = _typed(raw, "num_fewshot", int, 0, path)
    if isinstance(count, bool) or count < 0:
        raise ConfigError(f"{path}: `num_fewshot` must be 0 or more, not {count!r}")
    return count


def _metrics(raw: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    wanted = _typed(raw, "metric_list", list, [], path)
    if not all(isinstance(one, dict) and isinstance(one.get("metric"), str) for one in wanted):
        raise ConfigError(f"{path}: `metric_list` must be a list of `metric: NAME`, not {wanted!r}")
    return tuple(one["metric"] for one in wanted)


def _sampler(shots: Mapping[str, Any], path: Path) -> str:
    unknown = sorted(shots.keys() - {"sampler", "samples"})
    if unknown:
        raise ConfigError(f"{path}: `{unknown[0]}` in `fewshot_config` is not supported")
    sampler = shots.get("sampler", "default")
    if sampler not in _SAMPLERS:
        raise ConfigError(f"{path}: sampler {sampler!r} is not supported: use {' or '.join(_SAMPLERS)}")
    return str(sampler)


def _samples(shots: Mapping[str, Any], path: Path) -> tuple[Mapping[str, Any], ...]:
    samples = shots.get("samples") or []
    if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
        raise ConfigError(f"{path}: `samples` in `fewshot_config` must be a list of examples")
    return tuple(samples)
