"""Task files: accepted and refused contents, and the messages."""

from pathlib import Path

import pytest

from serving.errors import ConfigError
from serving.tools.evaluate.tasks.task_file import find_task_files, read_task_file
from tests.tools.evaluate.task_folder import TASK, without, write_task


def test_everything_that_a_task_says(tmp_path: Path) -> None:
    task = read_task_file(write_task(tmp_path))
    assert (task.name, task.description, task.target_delimiter, task.fewshot_delimiter) == ("animals", "", " ", "\n\n")
    assert task.doc_to_text == "Q: {{question}}\nA:"
    assert task.data_files == {"test": ("animals.jsonl",), "train": ("solved.jsonl",)}
    assert (task.eval_split, task.shot_split, task.num_fewshot, task.sampler) == ("test", "train", 0, "default")
    assert task.metrics == ("acc",)

    text = TASK.replace("    test: animals.jsonl\n", "    test: [a.jsonl, b.jsonl]\n")
    assert read_task_file(write_task(tmp_path, text)).data_files["test"] == ("a.jsonl", "b.jsonl")
    whole = without("test_split", without("training_split", TASK)).replace(
        "  data_files:\n    test: animals.jsonl\n    train: solved.jsonl\n", "  data_files: all.jsonl\n"
    )
    assert read_task_file(write_task(tmp_path, whole + "validation_split: train\n")).data_files == {
        "train": ("all.jsonl",)
    }


def test_included_files_give_what_the_task_does_not_say(tmp_path: Path) -> None:
    write_task(tmp_path, without("task") + "num_fewshot: 3\ntarget_delimiter: ''\n", name="_base.yaml")
    own = tmp_path / "own.yaml"
    own.write_text("include: _base.yaml\ntask: own\nnum_fewshot: 1\n")
    task = read_task_file(own)
    assert (task.name, task.num_fewshot, task.target_delimiter, task.eval_split) == ("own", 1, "", "test")

    (tmp_path / "_a.yaml").write_text("description: first\n")
    (tmp_path / "_b.yaml").write_text("description: second\ntarget_delimiter: ''\n")
    task = read_task_file(write_task(tmp_path, TASK + "include: [_a.yaml, _b.yaml]\n"))
    assert (task.description, task.target_delimiter) == ("first", "")


def test_a_folder_gives_its_tasks(tmp_path: Path) -> None:
    first = write_task(tmp_path)
    write_task(tmp_path, without("task"), name="_base.yaml")
    (tmp_path / "all.yaml").write_text("group: all\ntask: [animals]\n")
    second = tmp_path / "own.yml"
    second.write_text("include: _base.yaml\ntask: own\n")
    assert find_task_files([tmp_path]) == [first, second]
    assert find_task_files([second, first]) == [second, first]

    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"holds no task: a task is a \.yaml file with the key `task`"):
        find_task_files([tmp_path / "empty"])
    with pytest.raises(ConfigError, match="no task file or folder"):
        find_task_files([tmp_path / "nowhere.yaml"])


REFUSED = {
    "no choices": (without("doc_to_choice"), "lacks `doc_to_choice`"),
    "hardly anything": ("output_type: multiple_choice\n", "lacks `task`, `doc_to_text`, `doc_to_target`,"),
    "another kind": (without("output_type"), "output_type is 'generate_until', and only multiple_choice"),
    "no split": (without("test_split"), "lacks `test_split` or `validation_split`"),
    "from a hub": (
        TASK.replace("dataset_path: json", "dataset_path: some/animals"),
        "dataset_path is 'some/animals', but nothing is downloaded: save the data as JSONL",
    ),
    "no files": (
        TASK.replace("  data_files:\n    test: animals.jsonl\n    train: solved.jsonl\n", "  name: x\n"),
        "lacks `data_files` in `dataset_kwargs`",
    ),
    "code": (TASK + "process_docs: !function own.code\n", "line 18: `!function` would run code from a task file"),
    "a prompt of another library": (TASK + "use_prompt: promptsource:x\n", "`use_prompt` is not supported"),
    "a template that is none": (
        TASK.replace("doc_to_target: answer", "doc_to_target: 1.5"),
        "`doc_to_target` must be a column's name or a template, not 1.5",
    ),
    "a key of another kind": (TASK + "num_fewshot: many\n", "`num_fewshot` must be of type int, not 'many'"),
    "an unknown sampler": (TASK + "fewshot_config: {sampler: best}\n", "sampler 'best' is not supported: use default"),
    "an unknown few-shot key": (TASK + "fewshot_config: {doc_to_text: x}\n", "`doc_to_text` in `fewshot_config` is"),
    "examples that are none": (TASK + "fewshot_config: {samples: [x]}\n", "must be a list of examples"),
    "fewer examples than none": (TASK + "num_fewshot: -1\n", "`num_fewshot` must be 0 or more, not -1"),
    "metrics that are none": (
        TASK.replace("  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n", "  - acc\n"),
        "`metric_list` must be a list of `metric: NAME`",
    ),
    "a date that is none": ("task: x\nsince: 2020-13-45\n", "is not YAML: month must be in 1..12"),
    "endless": ("[" * 3000, "is not YAML"),
    "no YAML": ("task: [", "is not YAML: while parsing"),
    "a list": ("- task", "must hold keys and values"),
    "in a circle": (TASK + "include: animals.yaml\n", "includes itself"),
    "an include that is not there": (TASK + "include: other.yaml\n", "cannot read the task"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_evaluated_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write_task(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        read_task_file(path)
    assert message in str(raised.value)
    assert "animals.yaml" in str(raised.value) or "other.yaml" in str(raised.value)
    assert "\n" not in str(raised.value)
