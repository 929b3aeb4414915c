"""Reads the repository's Python sources as syntax trees: which modules there are, and what each imports."""

import ast
import gc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Source:
    """One file. `module` is its dotted name: `serving.values.sequence`, or `serving.values` for an `__init__.py`."""

    path: str
    module: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The file's syntax tree."""
        # Of the million objects of all trees the collector would find none to free, at twice the cost of making them.
        collects = gc.isenabled()
        gc.disable()
        try:
            return ast.parse(self.text, self.path)
        finally:
            if collects:
                gc.enable()

    @cached_property
    def imports(self) -> tuple[str, ...]:
        """Dotted names that the file imports anywhere, except for type checkers only.

        `from a import b` gives `a.b`, because `b` may be a module; `top_module` and `known_module` sort that out.
        """
        return tuple(_imports(self.tree))


def read_sources(*folders: str) -> list[Source]:
    """Every Python file below the folders of the repository."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [_read(path.relative_to(ROOT)) for path in paths]


@cache  # most tests here read all of them
def _read(path: Path) -> Source:
    parts = path.with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Source(path.as_posix(), module, (ROOT / path).read_text(encoding="utf-8"))


def _imports(node: ast.AST) -> Iterator[str]:
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children = node.orelse
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in children:
        if not isinstance(child, ast.expr):  # no expression has a statement in it
            yield from _imports(child)


def top_module(name: str) -> str:
    """`os.path.join` -> `os`."""
    return name.partition(".")[0]


def known_module(name: str, modules: Mapping[str, Source]) -> str | None:
    """The longest beginning of an imported name that is a module of ours."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def within(module: str, package: str) -> bool:
    """Whether a module is a package or lies in it."""
    return module == package or module.startswith(f"{package}.")
