"""A small multiple-choice task, written as a user of the lm-evaluation-harness would."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TASK = """\
task: animals
dataset_path: json
dataset_kwargs:
  data_files:
    test: animals.jsonl
    train: solved.jsonl
output_type: multiple_choice
test_split: test
training_split: train
doc_to_text: "Q: {{question}}\\nA:"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata: {version: 1.0}
"""

QUESTIONS: list[dict[str, Any]] = [
    {"question": "What does a cat say?", "choices": ["meow", "woof", "moo"], "answer": 0},
    {"question": "What does a dog say?", "choices": ["meow", "woof", "moo"], "answer": 1},
    {"question": "What does a cow say?", "choices": ["meow", "woof", "moo"], "answer": 2},
    {"question": "Which of them can fly?", "choices": ["a cow in the field", "a bird"], "answer": 1},
    {"question": "Which of them can swim?", "choices": ["a fish", "a very small worm"], "answer": 0},
]
SOLVED: list[dict[str, Any]] = [
    {"question": f"What is the number {i}?", "choices": ["zero", f"it is {i}"], "answer": 1} for i in range(6)
]


def write_lines(path: Path, rows: Sequence[object]) -> None:
    """One JSON value per line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_task(
    folder: Path, text: str = TASK, *, name: str = "animals.yaml", questions: Sequence[object] = QUESTIONS
) -> Path:
    """The task file, its questions and its solved examples; the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "animals.jsonl", questions)
    write_lines(folder / "solved.jsonl", SOLVED)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def without(key: str, text: str = TASK) -> str:
    """The task without a line."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(f"{key}:"))
