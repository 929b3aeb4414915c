"""Each nightly test names the test of the per-change run that keeps the same guarantee."""

import ast
from collections.abc import Iterator

from tests.architecture.source_tree import ROOT, Source, read_sources


def _named(source: Source) -> Iterator[str]:
    """Names in the file's `nightly` markers; a constant of the file stands for its value."""
    if "nightly(" not in source.text:
        return
    constants = {
        target.id: node.value.value
        for node in source.tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "nightly":
            (named,) = node.args
            yield str(constants[named.id] if isinstance(named, ast.Name) else ast.literal_eval(named))


def _is_per_change(test: str) -> bool:
    """Whether the test exists and is not nightly itself."""
    path, _, name = test.partition("::")
    if not (ROOT / path).exists():
        return False
    tree = ast.parse((ROOT / path).read_text())
    found = [
        node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    marks = [
        node for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node.targets[0])
    ]
    decorators = [decorator for function in found for decorator in function.decorator_list]
    return bool(found) and not any("nightly" in ast.unparse(node) for node in (*marks, *decorators))


def test_named_tests_run_for_every_change() -> None:
    named = {test: source.path for source in read_sources("tests") for test in _named(source)}
    assert len(named) > 5
    assert {test: path for test, path in named.items() if not _is_per_change(test)} == {}
