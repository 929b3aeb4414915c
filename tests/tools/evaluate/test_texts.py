"""Reading held-out text."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.processors import TemplateProcessing

from serving.errors import ConfigError
from serving.gateway.api.tokenizer import Tokenizer
from serving.tools.evaluate.texts import check_same_tokens, read_documents, read_text, text_prefix

SPECIAL = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}


@pytest.fixture
def beginning(checkpoint: Path) -> Tokenizer:
    """The tokenizer with <|bos|> before and <|eos|> after each text."""
    raw = RawTokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids = [(token, raw.token_to_id(token)) for token in SPECIAL.values()]
    raw.post_processor = TemplateProcessing(single="<|bos|> $A <|eos|>", special_tokens=ids)
    return Tokenizer.from_raw(raw, SPECIAL)


def test_a_file_is_a_document_and_a_jsonl_holds_many(tmp_path: Path) -> None:
    plain, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("one\n\ntwo")
    lines.write_text('{"text": "one"}\n\n{"text": "tw\\u00f6", "id": 3}\n')
    assert read_documents(plain) == ["one\n\ntwo"]
    assert read_documents(lines) == ["one", "twö"]


def test_what_is_predicted_is_counted(tmp_path: Path, tokenizer: Tokenizer, beginning: Tokenizer) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "xyz äb"}\n{"text": "q"}\n{"text": ""}')
    bare = read_text(path, tokenizer)
    assert [len(ids) for ids in bare.documents] == [7], "one token alone predicts nothing"
    assert (bare.nbytes, bare.words) == (6, 2)
    whole = read_text(path, beginning)
    assert text_prefix(tokenizer) == []
    assert [ids[0] for ids in whole.documents] == text_prefix(beginning) * 2
    assert (whole.nbytes, whole.words) == (8, 3)
    assert whole.documents[1] == (*text_prefix(beginning), *tokenizer.encode("q", add_special_tokens=False))


def test_limits(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "xyz"}\n' * 5)
    assert len(read_text(path, tokenizer, max_documents=2).documents) == 2
    assert [len(ids) for ids in read_text(path, tokenizer, max_tokens=8).documents] == [3, 3, 2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "holds no text to predict"),
        ("a.txt", b"q", "holds no text to predict"),
        ("a.jsonl", b"\n", "holds no text to predict"),
        ("a.txt", b"\xff\xfe", "is not UTF-8 text"),
        ("a.jsonl", b"{}", 'line 1 is no document: each line must be {"text": "..."}'),
        ("a.jsonl", b'{"text": "x"}\n[', "line 2 is not JSON"),
    ],
)
def test_files_that_hold_no_text(tmp_path: Path, tokenizer: Tokenizer, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        read_text(tmp_path / name, tokenizer)
    assert message in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the text .*nowhere.txt: No such file"):
        read_text(tmp_path / "nowhere.txt", tokenizer)


def test_two_models_must_read_the_same_tokens(checkpoint: Path, tokenizer: Tokenizer, beginning: Tokenizer) -> None:
    check_same_tokens(tokenizer, tokenizer, ["some text"])
    with pytest.raises(ConfigError, match="cut this text differently"):
        check_same_tokens(tokenizer, beginning, ["some text"])
    text = (checkpoint / "tokenizer.json").read_text().replace('"Ġw300"', '"Ġother"')
    other = Tokenizer.from_raw(RawTokenizer.from_str(text), SPECIAL)
    with pytest.raises(ConfigError, match=r"different tokenizers \(token 'Ġother' is missing here, 300 there\)"):
        check_same_tokens(tokenizer, other, [])


def test_half_a_surrogate_pair_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text('{"text": "fine"}\n{"text": "hello \\ud800 world"}\n')
    with pytest.raises(ConfigError, match="line 2 holds half a surrogate pair"):
        read_documents(path)
