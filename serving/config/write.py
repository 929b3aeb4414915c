"""A configuration as the text of a file that `read_config` reads back as the same value.

Keys with their default value are left out, and so are secrets.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from serving.config.cluster import ClusterConfig
from serving.config.serve import ServeConfig


def config_text(config: ServeConfig) -> str:
    """TOML of a configuration, with absolute paths."""
    blocks: list[list[str]] = []
    for declared in fields(config):
        section = getattr(config, declared.name)
        if isinstance(section, tuple):
            blocks += [[f"[[{declared.name}]]", *_keys(one, None)] for one in section]
            continue
        default = None if declared.default_factory is MISSING else declared.default_factory()
        keys = list(_keys(section, default))
        if keys:
            blocks.append([f"[{declared.name}]", *keys])
        if isinstance(section, ClusterConfig):
            blocks += [["[[cluster.nodes]]", *_keys(node, None)] for node in section.nodes]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _keys(section: Any, default: Any) -> Iterator[str]:  # noqa: ANN401 - any section
    """Lines of the keys that differ from a section's defaults."""
    for declared in fields(section):
        value = getattr(section, declared.name)
        if declared.repr and not _is_table_list(value) and value != _default(declared, default):
            yield f"{declared.name} = {_value(value)}"


def _is_table_list(value: object) -> bool:
    """Whether a value is a list of sections, which are written under their own headers."""
    return isinstance(value, tuple) and any(is_dataclass(one) for one in value)


def _default(declared: Field[Any], section: Any) -> Any:  # noqa: ANN401 - any value
    return declared.default if section is None else getattr(section, declared.name)


def _value(value: object) -> str:
    """A value in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(one) for one in value)}]"
    raise TypeError(f"no key of a configuration has a value such as {value!r}")
