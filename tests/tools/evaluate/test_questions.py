"""From a task's data to contexts, continuations and right choices."""

import random
from pathlib import Path

import pytest

from serving.errors import ConfigError
from serving.tools.evaluate.tasks.questions import TaskQuestion, choices_of, read_questions, render, target_of, text_of
from serving.tools.evaluate.tasks.task_file import read_task_file
from tests.tools.evaluate.task_folder import QUESTIONS, SOLVED, TASK, without, write_lines, write_task


def questions(path: Path, num_fewshot: int | None = None, limit: int | None = None) -> list[TaskQuestion]:
    return read_questions(read_task_file(path), num_fewshot=num_fewshot, limit=limit)


def test_choices_follow_or_precede_the_text(tmp_path: Path) -> None:
    found = questions(write_task(tmp_path))
    assert len(found) == 5
    assert found[3] == TaskQuestion(
        (("Q: Which of them can fly?\nA:", " a cow in the field"), ("Q: Which of them can fly?\nA:", " a bird")),
        ("a cow in the field", "a bird"),
        frozenset({1}),
    )
    assert questions(write_task(tmp_path), limit=2) == found[:2]

    text = TASK.replace('doc_to_text: "Q: {{question}}\\nA:"', "doc_to_text: answer")
    text = text.replace("doc_to_target: answer", "doc_to_target: '{{question}}'")
    assert questions(write_task(tmp_path, text))[3] == TaskQuestion(
        (("a cow in the field", " Which of them can fly?"), ("a bird", " Which of them can fly?")),
        ("a cow in the field", "a bird"),
        frozenset({1}),
    )


@pytest.mark.parametrize(
    ("answer", "gold"), [(1, {1}), ("woof", {1}), ([0, "moo"], {0, 2}), (3, set()), ("purr", set()), (-100, set())]
)
def test_right_choices(tmp_path: Path, answer: object, gold: set[int]) -> None:
    path = write_task(tmp_path, questions=[{**QUESTIONS[0], "answer": answer}, QUESTIONS[1]])
    assert questions(path)[0].gold == gold


def solved(doc: dict[str, object]) -> str:
    return f"Q: {doc['question']}\nA: {doc['choices'][doc['answer']]}\n\n"  # type: ignore[index]


def test_examples_are_drawn_as_the_harness_draws_them(tmp_path: Path) -> None:
    found = questions(write_task(tmp_path, TASK + "description: 'About {{question}}: '\n"), num_fewshot=2)
    rng = random.Random(1234)
    for question, doc in zip(found, QUESTIONS, strict=True):
        shots = "".join(solved(one) for one in rng.sample(SOLVED, 2))
        assert question.pairs[0][0] == f"About {doc['question']}: {shots}Q: {doc['question']}\nA:"


def test_examples_are_those_that_were_asked_for(tmp_path: Path) -> None:
    first = questions(write_task(tmp_path, TASK + "num_fewshot: 2\nfewshot_config: {sampler: first_n}\n"))
    assert all(q.pairs[0][0].startswith(solved(SOLVED[0]) + solved(SOLVED[1]) + "Q: ") for q in first)
    shots = "num_fewshot: 1\nfewshot_config: {samples: [{question: one, choices: [a, b], answer: 1}]}\n"
    own = questions(write_task(tmp_path, TASK + shots))
    assert all(q.pairs[0][0].startswith("Q: one\nA: b\n\nQ: ") for q in own)

    text = without("training_split") + "fewshot_split: test\nnum_fewshot: 4\nfewshot_config: {sampler: first_n}\n"
    for question, doc in zip(questions(write_task(tmp_path, text)), QUESTIONS, strict=True):
        others = "".join(solved(one) for one in QUESTIONS if one != doc)
        assert question.pairs[0][0] == f"{others}Q: {doc['question']}\nA:"

    text = TASK.replace('doc_to_text: "Q: {{question}}\\nA:"', "doc_to_text: answer")
    text = text.replace("doc_to_target: answer", "doc_to_target: '{{question}}'") + "num_fewshot: 1\n"
    path = write_task(tmp_path, text + "fewshot_config: {samples: [{question: go., choices: [we, you], answer: 1}]}\n")
    assert questions(path)[0].pairs[0] == ("you go.\n\nmeow", " What does a cat say?")

    path = write_task(tmp_path, TASK.replace("test: animals.jsonl", "test: 'part-*.json'"))
    (tmp_path / "part-1.json").write_text(
        '[{"question": "x", "choices": ["a", "b"], "answer": 0}, {"question": "y", "choices": ["a", "b"], "answer": 1}]'
    )
    write_lines(tmp_path / "part-2.json", QUESTIONS[:1])
    assert [question.pairs[0][0] for question in questions(path)][:2] == ["Q: x\nA:", "Q: y\nA:"]
    assert len(questions(path)) == 3


MISTAKES = {
    "no answers": ({"question": "x", "choices": ["a", "b"]}, "no answer is among its choices: correct `doc_to_target`"),
    "an undefined name": ({"choices": ["a", "b"], "answer": 0}, "question 1 of 'test': the template 'Q: {{question}}"),
    "no choices": ({"question": "x", "choices": "a", "answer": 0}, "not a list of at least two strings"),
    "no object": (["x"], "line 1: a question must be a JSON object"),
}


@pytest.mark.parametrize(("row", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_questions_that_do_not_fit(tmp_path: Path, row: object, message: str) -> None:
    write_task(tmp_path)
    write_lines(tmp_path / "animals.jsonl", [row])
    with pytest.raises(ConfigError) as raised:
        questions(tmp_path / "animals.yaml")
    assert message in str(raised.value)


def test_data_and_examples_that_are_not_there(tmp_path: Path) -> None:
    path = write_task(tmp_path)
    (tmp_path / "animals.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="holds no question"):
        questions(path)
    (tmp_path / "animals.jsonl").write_text("{")
    with pytest.raises(ConfigError, match=r"animals.jsonl, line 1 is not JSON"):
        questions(path)
    (tmp_path / "animals.jsonl").unlink()
    with pytest.raises(ConfigError, match="no data file"):
        questions(path)
    with pytest.raises(ConfigError, match="`data_files` has no split 'dev', only test, train"):
        questions(write_task(tmp_path, TASK.replace("test_split: test", "test_split: dev")))

    with pytest.raises(ConfigError, match="7 examples for each question are requested, but there are only 6"):
        questions(write_task(tmp_path), num_fewshot=7)
    bad = "fewshot_config: {samples: [{question: one, choices: [a, b], answer: 5}]}\n"
    with pytest.raises(ConfigError, match="an example's answer is number 5, and it has 2 choices"):
        questions(write_task(tmp_path, TASK + bad), num_fewshot=1)


DOC = {"q": "How many?", "label": 2, "key": "B", "odd": "[x]", "list": ["a", "b"], "digits": "7", "gold": [0, 1]}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("q", "How many?"), ("{{q}}\n", "How many?\n"), ("q: {{q|upper}}", "q: HOW MANY?"), ("{{label}}", 2),
        ("label", 2), (1, 1), ("digits", "7"), ("{{q|regex_replace('many', 'few')}}", "How few?"),
    ],
)  # fmt: skip
def test_texts(template: str | int, text: str | int) -> None:
    assert text_of(template, DOC) == text


@pytest.mark.parametrize(
    ("template", "target"),
    [
        ("label", 2), ("{{label}}", 2), ("{{['A', 'B'].index(key)}}", 1), ("key", "B"), ("odd", "[x]"),
        ("[{{label}}, 0]", [2, 0]), ("[not a list", "[not a list"), ("[not a list]", "[not a list]"),
        ("gold", [0, 1]), ([1, 2], [1, 2]), (0, 0),
    ],
)  # fmt: skip
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
    with pytest.raises(ConfigError, match="not a list of at least two strings"):
        choices_of(template, DOC)


@pytest.mark.parametrize(
    "template",
    [
        "{{missing}}", "{{q", "{{q + 1}}", "{{q.__class__.__mro__}}", "{{list.append(1)}}", "{{ 1 // 0 }}",
        "{{ 2.0 ** 5000 }}", "{{ q.nothing() }}",
    ],
)  # fmt: skip
def test_templates_that_cannot_be_rendered(template: str) -> None:
    with pytest.raises(ConfigError, match="cannot be rendered"):
        render(template, DOC)


def test_what_is_no_text_target_or_list() -> None:
    with pytest.raises(ConfigError, match="neither a string nor an index"):
        text_of("list", DOC)
    with pytest.raises(ConfigError, match="doc_to_target gives None"):
        target_of("x", {"x": None})
    assert text_of("9" * 5000, DOC) == "9" * 5000
    with pytest.raises(ConfigError, match="not a list of at least two strings"):
        choices_of("{[]: 1}", DOC)
