import json
import shutil
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from serving.errors import ModelError
from serving.gateway.api.settings import GenerationDefaults, ServedModel
from serving.gateway.api.tokenizer import Tokenizer, byte_level_alphabet
from tests.gateway.api.support import BOS, EOS, SENTENCES


@pytest.mark.parametrize("text", [*SENTENCES, "", "  two  spaces \n\n", "<|user|>hi"])
def test_ids_equal_transformers(model_folder: Path, text: str) -> None:
    ours = Tokenizer.from_folder(model_folder)
    theirs = PreTrainedTokenizerFast.from_pretrained(str(model_folder))
    for special in (True, False):
        assert ours.encode(text, add_special_tokens=special) == theirs.encode(text, add_special_tokens=special)


def test_special_tokens_from_strings_and_objects(model_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(model_folder)
    assert tokenizer.special_tokens == {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    assert tokenizer.eos_id == EOS
    assert tokenizer.special_ids == {0, 1, 2, 3}


def test_token_bytes_join_to_the_text(model_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(model_folder)
    text = SENTENCES[3]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(tokenizer.token_bytes(i) for i in ids).decode() == text
    assert tokenizer.token_text(BOS) == "<|bos|>"
    assert tokenizer.token_bytes(10**6) == b""
    assert tokenizer.token_string(10**6) == ""


def test_alphabet_is_a_bijection_of_bytes() -> None:
    assert sorted(byte_level_alphabet().values()) == list(range(256))


def test_missing_tokenizer_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_broken_files_are_model_errors(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot load"):
        Tokenizer.from_folder(tmp_path)
    shutil.copy(model_folder / "tokenizer.json", tmp_path)
    for content in ("[]", "{", "\xff", '{"a":' * 100_000):
        (tmp_path / "tokenizer_config.json").write_text(content, encoding="latin-1")
        with pytest.raises(ModelError, match="tokenizer_config"):
            Tokenizer.from_folder(tmp_path)


def test_served_model_reads_ends_and_defaults(served: ServedModel) -> None:
    assert served.eos_ids == (EOS,)
    assert served.defaults == GenerationDefaults(temperature=0.7, top_k=20)
    assert served.token_limit == 400


def test_served_model_joins_all_end_tokens(model_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 2], "temperature": None}))
    model = ServedModel.from_folder(tmp_path, names=("m",), max_model_len=8, created=0)
    assert model.eos_ids == (EOS, 2, 3)
    assert model.defaults == GenerationDefaults()
    with pytest.raises(ModelError, match="name"):
        ServedModel.from_folder(tmp_path, names=(), max_model_len=8, created=0)


def test_no_end_token_may_be_written_as_minus_one(model_folder: Path, tmp_path: Path) -> None:
    """Read as an id, it hid the vocabulary's last token from requests with `min_tokens`."""
    shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": -1}))
    assert ServedModel.from_folder(tmp_path, names=("m",), max_model_len=8, created=0).eos_ids == (EOS,)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"temperature": "0.7"}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 20.5}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_new_tokens": -4}, "max_tokens"),
    ],
)
def test_defaults_that_no_request_may_have_are_refused_at_start(
    model_folder: Path, tmp_path: Path, values: dict[str, object], name: str
) -> None:
    """They would fail every request that does not set them, or the engine's whole step."""
    shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match=rf"generation_config\.json: invalid '{name}'"):
        ServedModel.from_folder(tmp_path, names=("m",), max_model_len=8, created=0)
