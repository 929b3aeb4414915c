"""Each nightly test names the test of the per-change run that keeps the same guarantee."""

import ast
from collections.abc import Iterator

from tests.architecture.source_tree import ROOT, Source, read_sources

MARKERS = {"nightly": 0, "mostly_nightly": 2}
"""Calls that mark, and the position of the name among their arguments."""


def _is_marker(node: ast.AST, name: str = "") -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    found = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return found == name if name else found in MARKERS


def _named(source: Source) -> Iterator[str]:
    """Names in the file's markers; constants of the file are replaced by their values."""
    if "nightly(" not in source.text or source.path == "tests/cases/nightly.py":
        return
    constants = {
        node.targets[0].id: node.value.value
        for node in source.tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and _is_marker(node):
            at = MARKERS["nightly" if _is_marker(node, "nightly") else "mostly_nightly"]
            named = node.args[at] if len(node.args) > at else node.keywords[-1].value
            parts = [named.left, named.right] if isinstance(named, ast.BinOp) else [named]
            yield "".join(
                str(constants[one.id] if isinstance(one, ast.Name) else ast.literal_eval(one)) for one in parts
            )


def _is_per_change(test: str) -> bool:
    """Whether the test exists, and neither it nor its file is nightly."""
    path, _, name = test.partition("::")
    if not name or not (ROOT / path).exists():
        return False
    tree = ast.parse((ROOT / path).read_text())
    nodes, found = list[ast.AST](tree.body), list[ast.AST]()
    for part in name.split("::"):
        found = [one for one in nodes if getattr(one, "name", "") == part]
        nodes = [inner for one in found for inner in getattr(one, "body", ())]
    if not found:
        return False
    marks = [one for one in tree.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark"]
    whole = [mark for assigned in marks for mark in ast.walk(assigned)]
    return not any(_is_marker(mark, "nightly") for mark in (*whole, *getattr(found[0], "decorator_list", ())))


def test_named_tests_run_for_every_change() -> None:
    named = {test: source.path for source in read_sources("tests") for test in _named(source)}
    assert len(named) > 5
    assert {test: path for test, path in named.items() if not _is_per_change(test)} == {}
