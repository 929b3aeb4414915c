"""Reads the repository's Python sources as syntax trees: the modules, and the imports of each.

Each tree is walked once, and the result is cached: the rules query the same trees for nodes of a few kinds.
"""

import ast
import gc
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

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
    def statements(self) -> tuple[ast.stmt, ...]:
        """All statements at any depth, including functions, classes and imports."""
        return tuple(_statements(self.tree.body))

    def nodes(self, *kinds: type[ast.AST]) -> list[Any]:
        """Nodes of these kinds, expressions included, unordered; the file is walked on the first call only."""
        return [node for kind in kinds for node in self._by_kind.get(kind, ())]

    @cached_property
    def _by_kind(self) -> Mapping[type[ast.AST], list[ast.AST]]:
        found: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        left: list[ast.AST] = [self.tree]
        while left:
            node = left.pop()
            found[type(node)].append(node)
            for value in vars(node).values():
                if isinstance(value, ast.AST):
                    left.append(value)
                elif isinstance(value, list):
                    left += [one for one in value if isinstance(one, ast.AST)]
        return found

    @cached_property
    def imports(self) -> tuple[str, ...]:
        """Dotted names that the file imports at any place, except for type checkers only.

        `from a import b` yields `a.b`, because `b` may be a module; `top_module` and `known_module` resolve that.
        """
        return tuple(_imports(_statements(self.tree.body, for_checkers=False)))


def read_sources(*folders: str) -> list[Source]:
    """Every Python file below the folders of the repository."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [_read(path.relative_to(ROOT)) for path in paths]


@cache  # most tests read all of them
def _read(path: Path) -> Source:
    parts = path.with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Source(path.as_posix(), module, (ROOT / path).read_text(encoding="utf-8"))


def _statements(body: Sequence[ast.stmt], *, for_checkers: bool = True) -> Iterator[ast.stmt]:
    """Statements and those inside them; expressions contain none."""
    for node in body:
        yield node
        fields = vars(node)
        if "body" in fields and (for_checkers or not _is_for_checkers(node)):
            yield from _statements(fields["body"], for_checkers=for_checkers)
        for handler in (*fields.get("handlers", ()), *fields.get("cases", ())):
            yield from _statements(handler.body, for_checkers=for_checkers)
        for name in ("orelse", "finalbody"):
            yield from _statements(fields.get(name, ()), for_checkers=for_checkers)


def _is_for_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _imports(statements: Iterator[ast.stmt]) -> Iterator[str]:
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def top_module(name: str) -> str:
    """`os.path.join` -> `os`."""
    return name.partition(".")[0]


def known_module(name: str, modules: Mapping[str, Source]) -> str | None:
    """The longest prefix of an imported name that is a module of ours."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def within(module: str, package: str) -> bool:
    """Whether a module is a package or inside it."""
    return module == package or module.startswith(f"{package}.")
