"""The reference table of every configuration key, made from the dataclasses themselves."""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from serving.config.cluster import NodeConfig
from serving.config.key import key_spec
from serving.config.kvcache import NamespaceConfig
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.config.value import describe_range


def config_table() -> str:
    """Every section and key as one Markdown table, with default, allowed values and meaning.

    Returns: lines joined by newlines, without one at the end.
    Effects: none.
    """
    rows = ["| section | key | default | allowed | meaning |", "| --- | --- | --- | --- | --- |"]
    config = ServeConfig(model=ModelConfig(path=Path()), namespaces=(NamespaceConfig(name=""),))
    for _, group in groupby(fields(ServeConfig), key=lambda section: type(getattr(config, section.name))):
        names = [section.name for section in group]
        if names == ["namespaces"]:
            rows += _rows(["`[[namespaces]]`"], [config.namespaces[0]])
            continue
        rows += _rows([f"`[{name}]`" for name in names], [getattr(config, name) for name in names])
        if names == ["cluster"]:
            rows += _rows(["`[[cluster.nodes]]`"], [replace(config.cluster.nodes[0], name="")])
    return "\n".join(rows)


def _rows(titles: list[str], sections: list[Any]) -> Iterator[str]:
    """One row per key; sections of one type (the pools) share their rows, with a default each where they differ."""
    hints = get_type_hints(type(sections[0]))
    for declared in fields(sections[0]):
        hint = hints[declared.name]
        if get_args(hint)[:1] == (NodeConfig,):
            continue  # has rows of its own
        defaults = [f"`{_toml(getattr(section, declared.name))}`" for section in sections]
        default = defaults[0] if len(set(defaults)) == 1 else " / ".join(defaults)
        default = "required" if declared.default is MISSING else default
        cells = [" ".join(titles), f"`{declared.name}`", default, _allowed(hint, declared), key_spec(declared).doc]
        yield f"| {' | '.join(cells)} |"


def _allowed(hint: object, declared: Field[Any]) -> str:
    """Choices or range of a key in words; empty for what needs none."""
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    spec = key_spec(declared)
    if hint in (int, float):
        return describe_range(spec)
    return "not empty" if spec.low else ""


def _toml(value: object) -> str:
    """A default as it would stand in a file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value)) if isinstance(value, tuple) else f"{value}"
