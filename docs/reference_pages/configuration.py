"""Every key of a topology file, generated from the dataclasses that read it."""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from docs.reference_pages.markdown import made_by_a_script, table
from serving.config import ModelConfig, NamespaceConfig, NodeConfig, ServeConfig
from serving.config.key import key_spec
from serving.config.upgrade import rules_by_key
from serving.config.value import describe_range

HEAD = """Sections and keys of a topology file; [deploy](../../deploy/README.md) lists the files, the form of values
and their precedence. The last column shows what a changed key requires when a running system is deployed again: new
replicas, or an update in place. A default written as `a` / `b` / `c` is that of the sections in their order."""


def configuration() -> str:
    """The page."""
    parts = [made_by_a_script("Configuration", HEAD)]
    for titles, sections in _sections():
        head = " ".join(titles)
        rows = table(("key", "default", "allowed", "meaning", "a change"), _rows(sections, titles))
        parts.append(f"## {head}\n\n{rows}")
    return "\n".join(parts)


def _sections() -> Iterator[tuple[list[str], list[Any]]]:
    """Titles of sections of one type, and an example of each with its defaults."""
    config = ServeConfig(model=ModelConfig(path=Path()), namespaces=(NamespaceConfig(name=""),))
    for _, group in groupby(fields(ServeConfig), key=lambda section: type(getattr(config, section.name))):
        names = [section.name for section in group]
        if names == ["namespaces"]:
            yield ["`[[namespaces]]`"], [config.namespaces[0]]
            continue
        yield [f"`[{name}]`" for name in names], [getattr(config, name) for name in names]
        if names == ["cluster"]:
            yield ["`[[cluster.nodes]]`"], [replace(config.cluster.nodes[0], name="")]


def _rows(sections: list[Any], titles: list[str]) -> Iterator[tuple[str, ...]]:
    """One row per key; sections of one type (the pools) share their rows, with a default each where they differ."""
    hints = get_type_hints(type(sections[0]))
    for declared in fields(sections[0]):
        hint = hints[declared.name]
        if get_args(hint)[:1] == (NodeConfig,):
            continue  # has a table of its own
        defaults = [f"`{_toml(getattr(section, declared.name))}`" for section in sections]
        default = defaults[0] if len(set(defaults)) == 1 else " / ".join(defaults)
        default = "required" if declared.default is MISSING else default
        key = f"{titles[0].strip('`[]')}.{declared.name}"
        change = rules_by_key()[key].words if len(sections) == 1 else _of_pools(key)
        yield f"`{declared.name}`", default, _allowed(hint, declared), key_spec(declared).doc, change


def _of_pools(key: str) -> str:
    return rules_by_key()[key].words.replace("prefill", "that pool")


def _allowed(hint: object, declared: Field[Any]) -> str:
    """Choices or range of a key in words; empty for what needs none."""
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    spec = key_spec(declared)
    if hint in (int, float):
        return describe_range(spec)
    return "not empty" if spec.low else ""


def _toml(value: object) -> str:
    """A default as written in a file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value)) if isinstance(value, tuple) else f"{value}"
