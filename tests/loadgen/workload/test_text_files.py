"""Prompts cut from text files have exact lengths and are the files' own words."""

from pathlib import Path

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.workload.calibrate import calibrate
from loadgen.workload.lengths import lengths
from loadgen.workload.local_tokenizer import LocalTokenizer
from loadgen.workload.ports import TokenCounter
from loadgen.workload.source import Question
from loadgen.workload.text_files import TextFiles
from loadgen.workload.words import PromptKind, Words
from tests.loadgen.workload.counters import Bytes, CountsOnly, metaspace_bpe

PROSE = (
    """The brave little robot, who couldn't swim, walked to Zürich in 1987;
it met 42 “unfriendly” wolves\tand -- unbelievably -- survived.  Extraordinary!\n\nAnd then? Nothing.\n"""
    * 5
)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, ...]:
    for name, text in (("a.txt", PROSE), ("b.txt", "second file\nwith few words")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return (tmp_path / "a.txt", tmp_path / "b.txt")


def ask(source: TextFiles, count: int, limit: int | None = None) -> list[Question]:
    rng = np.random.default_rng(5)
    asker = source.open(rng)
    return [asker.first(rng, limit) for _ in range(count)]


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece"])
def test_lengths_are_exact_even_beyond_the_files_end(files: tuple[Path, ...], kind: str, bpe: LocalTokenizer) -> None:
    counter = bpe if kind == "byte level" else metaspace_bpe()
    source = TextFiles(files, calibrate(counter), lengths("uniform:1-900"), counter)
    for question in ask(source, 60):
        assert question.exact
        assert counter.count(str(question.prompt)) == question.tokens


def test_a_prompt_is_a_run_of_the_files_words(files: tuple[Path, ...], bpe: LocalTokenizer) -> None:
    whole = " ".join([PROSE, "second file with few words"]).split()
    source = TextFiles(files, calibrate(bpe), lengths("60"), bpe)
    twice = " " + " ".join(whole + whole)
    starts = set()
    for question in ask(source, 30):
        prompt = str(question.prompt)
        run = prompt
        while run not in twice:  # text that fills up comes last
            run = run[: run.rindex(" ")]
        assert len(run) > 0.5 * len(prompt)
        starts.add(run[:20])
    assert len(starts) > 10


def test_questions_repeat_and_are_made_of_the_files_words(
    files: tuple[Path, ...], bpe: LocalTokenizer, words: Words
) -> None:
    rng = np.random.default_rng(0)
    later = TextFiles(files, calibrate(bpe), lengths("30"), bpe).open(rng).later(rng)
    assert later.tokens == 30
    assert bpe.count(str(later.prompt)) == 31
    (question,) = ask(TextFiles(files, calibrate(bpe, chat=True), lengths("30"), bpe), 1)
    assert question.exact
    assert bpe.count(str(question.prompt)) - 1 == question.tokens == 30
    source = TextFiles(files, calibrate(bpe), lengths("500"), bpe)
    assert {question.tokens for question in ask(source, 5, limit=12)} == {12}

    source = TextFiles(files, words, lengths("30"), bpe)
    assert ask(source, 10) == ask(source, 10)


@pytest.mark.parametrize("counter", [None, CountsOnly(metaspace_bpe().count), Bytes()])
def test_lengths_are_estimates_where_words_cannot_be_counted(
    files: tuple[Path, ...], counter: TokenCounter | None
) -> None:
    source = TextFiles(files, calibrate(counter), lengths("400"), counter)
    for question in ask(source, 5):
        assert not question.exact
        counted = counter.count(str(question.prompt)) if counter else 1.3 * len(str(question.prompt).split())
        assert counted == pytest.approx(400, rel=0.2)


def test_only_so_much_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one two three")
    (tmp_path / "b").write_text("four five six seven")
    source = TextFiles((tmp_path / "a", tmp_path / "b"), calibrate(None), lengths("40"), most_words=5)
    seen = {word for question in ask(source, 20) for word in str(question.prompt).split()}
    assert {"one", "five"} <= seen
    assert not {"six", "seven"} & seen


def test_what_is_refused(tmp_path: Path, words: Words, bpe: LocalTokenizer) -> None:
    with pytest.raises(UsageError, match="No such file"):
        ask(TextFiles((tmp_path / "none",), words, lengths("5")), 1)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="as text"):
        ask(TextFiles((tmp_path / "binary",), words, lengths("5")), 1)
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(UsageError, match="no words"):
        ask(TextFiles((tmp_path / "empty",), words, lengths("5")), 1)

    with pytest.raises(UsageError, match="--prompt-kind text"):
        TextFiles((), calibrate(bpe, kind=PromptKind.IDS), lengths("5"))
