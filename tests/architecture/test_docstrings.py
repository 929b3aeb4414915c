"""Docstrings start with what the thing is or does, so that the first line is complete where a tool shows it."""

import ast
from collections.abc import Iterator, Sequence

from tests.architecture.source_tree import Source, read_sources

BAD_FIRST_WORDS = frozenset(
    """
    What As Of It Its To So Such That There Their They Was Told Who Whom Whose Whoever Nobody Somebody Something Hardly
    """.split()
)
"""A phrase that starts with one of these depends on its context, or describes processes as people."""

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def bad_first_words(sources: Sequence[Source]) -> list[str]:
    """Docstrings of modules, classes and functions that start with one of `BAD_FIRST_WORDS`."""
    return [
        f"{source.path}:{line} {text.strip().splitlines()[0]}"
        for source in sources
        for line, text in docstrings(source)
        if text.split(None, 1)[0].rstrip(",.:;") in BAD_FIRST_WORDS
    ]


def docstrings(source: Source) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring that is not empty."""
    for node in (source.tree, *source.statements):
        if isinstance(node, Documented) and (text := ast.get_docstring(node, clean=False)):
            yield node.body[0].lineno, text


def test_docstrings_begin_with_what_the_thing_is_or_does() -> None:
    assert bad_first_words(read_sources("hardware", "serving", "loadgen", "deploy", "docs", "examples")) == []


def test_the_checker_sees_a_first_word_wherever_it_stands() -> None:
    text = '"""What is here."""\nclass A:\n    """A thing."""\n    async def f(self):\n        """It: goes."""\n'
    assert bad_first_words([Source("a.py", "a", text)]) == ["a.py:1 What is here.", "a.py:5 It: goes."]
    assert bad_first_words([Source("a.py", "a", '"""Items."""\ndef f():\n    ""\n')]) == []
