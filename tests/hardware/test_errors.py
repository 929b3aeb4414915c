"""The error tree is the one drawn in the module's docstring."""

import inspect
import re

from hardware import errors


def test_the_drawing_is_the_tree() -> None:
    classes = {name: cls for name, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)}
    drawn: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.search(r"[A-Z]\w*Error\b", line)
        if not (match and re.fullmatch(r"[\s│├└─]*", line[: match.start()])):
            continue
        while stack and stack[-1][0] >= match.start():
            stack.pop()
        drawn[match[0]] = stack[-1][1] if stack else "Exception"
        stack.append((match.start(), match[0]))
    assert drawn == {name: cls.__bases__[0].__name__ for name, cls in classes.items()}
