"""A tokenizer.json on this machine."""

import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from loadgen.errors import UsageError
from loadgen.workload.local_tokenizer import LocalTokenizer, open_tokenizer


@pytest.fixture
def folder(tmp_path: Path, bpe: LocalTokenizer) -> Path:
    """A model's folder with a tokenizer that asks for cutting and filling up."""
    tokenizer = Tokenizer.from_str(bpe._tokenizer.to_str())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_file_and_folder_are_the_same_and_are_neither_cut_nor_filled(folder: Path) -> None:
    for where in (folder, folder / "tokenizer.json"):
        counter = open_tokenizer(where)
        assert counter.count(" the cat the cat the cat") == 7
        assert counter.pieces(" the cat") == ["<s>", "Ġthe", "Ġcat"]
        ids = counter.ids(" the cat")
        assert ids is not None
        assert (len(ids), ids[0]) == (3, 0)


def test_nothing_there(tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(UsageError, match="no tokenizer at"):
            open_tokenizer(where)


def test_not_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"not a tokenizer\.json"):
        open_tokenizer(tmp_path)


def test_a_missing_package_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match="package `tokenizers`"):
        open_tokenizer(folder)


def test_the_package_is_imported_only_when_one_is_opened() -> None:
    code = (
        "import sys, loadgen.workload.local_tokenizer, loadgen.workload.plan_jobs, loadgen.workload.text_files;"
        "print('tokenizers' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
