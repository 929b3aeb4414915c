"""Templates, by the rules of the lm-evaluation-harness."""

import pytest

from serving.errors import ConfigError
from serving.tools.evaluate.tasks.template import choices_of, render, target_of, text_of

DOC = {"q": "How many?", "label": 2, "key": "B", "odd": "[x]", "list": ["a", "b"], "digits": "7", "gold": [0, 1]}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("q", "How many?"),
        ("{{q}}\n", "How many?\n"),
        ("q: {{q|upper}}", "q: HOW MANY?"),
        ("{{label}}", 2),
        ("label", 2),
        (1, 1),
        ("digits", "7"),
        ("{{q|regex_replace('many', 'few')}}", "How few?"),
    ],
)
def test_texts(template: str | int, text: str | int) -> None:
    assert text_of(template, DOC) == text


@pytest.mark.parametrize(
    ("template", "target"),
    [
        ("label", 2),
        ("{{label}}", 2),
        ("{{['A', 'B'].index(key)}}", 1),
        ("key", "B"),
        ("odd", "[x]"),
        ("[{{label}}, 0]", [2, 0]),
        ("[not a list", "[not a list"),
        ("[not a list]", "[not a list]"),
        ("gold", [0, 1]),
        ([1, 2], [1, 2]),
        (0, 0),
    ],
)
def test_targets(template: str | int | list[int], target: object) -> None:
    assert target_of(template, DOC) == target


def test_choices() -> None:
    assert choices_of("list", DOC) == ["a", "b"]
    assert choices_of("{{list}}", DOC) == ["a", "b"]
    assert choices_of('["{{key}}", "no"]', DOC) == ["B", "no"]
    assert choices_of(["yes", "{{key}}"], DOC) == ["yes", "{{key}}"], "constants, as in the harness"
    assert choices_of({"x": "yes", "y": "no"}, DOC) == ["yes", "no"]


@pytest.mark.parametrize("template", ["q", "{{q}}", ["one"], "label", '["a", ""]', "[1, 2]"])
def test_what_is_no_choice(template: str | list[str]) -> None:
    with pytest.raises(ConfigError, match="no list of two texts or more"):
        choices_of(template, DOC)


@pytest.mark.parametrize(
    "template", ["{{missing}}", "{{q", "{{q + 1}}", "{{q.__class__.__mro__}}", "{{list.append(1)}}"]
)
def test_templates_that_cannot_be_rendered(template: str) -> None:
    with pytest.raises(ConfigError, match="cannot be rendered"):
        render(template, DOC)


def test_texts_and_targets_of_no_use() -> None:
    with pytest.raises(ConfigError, match="neither a text nor an index"):
        text_of("list", DOC)
    with pytest.raises(ConfigError, match="doc_to_target gives None"):
        target_of("x", {"x": None})


@pytest.mark.parametrize("template", ["{{ 1 // 0 }}", "{{ 2.0 ** 5000 }}", "{{ q.nothing() }}"])
def test_an_expression_that_fails_is_told(template: str) -> None:
    with pytest.raises(ConfigError, match="cannot be rendered"):
        render(template, DOC)


def test_what_only_looks_like_a_number_or_a_list_is_text() -> None:
    assert text_of("9" * 5000, DOC) == "9" * 5000
    with pytest.raises(ConfigError, match="no list of two texts"):
        choices_of("{[]: 1}", DOC)
