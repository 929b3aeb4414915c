"""The questions of a task: one JSON object per line, or a JSON list, in local files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hardware.nesting import parse_json
from hardware.regular_file import read_regular_text
from serving.errors import ConfigError

Doc = Mapping[str, Any]


def read_split(patterns: Sequence[str], beside: Path) -> list[Doc]:
    """All questions of one split, in order.

    Args:
        patterns: file names or glob patterns, absolute or relative to `beside`.
        beside: folder of the task file.
    Raises: ConfigError if a name matches no file, a line is not a JSON object, or there is no question at all.
    Effects: reads files.
    """
    docs: list[Doc] = []
    for pattern in patterns:
        files = _files(pattern, beside)
        if not files:
            raise ConfigError(f"no data file {beside / pattern}: the task names it in `data_files`")
        for file in files:
            docs += _read(file)
    if not docs:
        raise ConfigError(f"{', '.join(patterns)} in {beside} holds no question")
    return docs


def _files(pattern: str, beside: Path) -> list[Path]:
    path = beside / pattern  # an absolute pattern stays what it is
    if path.is_file():
        return [path]
    return sorted(file for file in path.parent.glob(path.name) if file.is_file()) if path.name else []


def _read(path: Path) -> list[Doc]:
    try:
        content = read_regular_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if content.lstrip().startswith("["):
        rows = [(1, value) for value in _parsed(content, path, 1, list)]
    else:
        lines = ((number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip())
        rows = [(number, _parsed(line, path, number, dict)) for number, line in lines]
    for number, row in rows:
        if not isinstance(row, dict):
            raise ConfigError(f"{path}, line {number}: a question must be a JSON object, not {row!r}")
    return [row for _, row in rows]


def _parsed(text: str, path: Path, line: int, kind: type) -> Any:  # noqa: ANN401
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{path}, line {line} is not JSON: {error}") from None
    if not isinstance(value, kind):
        raise ConfigError(f"{path}, line {line}: a question must be a JSON object, not {value!r}")
    return value
