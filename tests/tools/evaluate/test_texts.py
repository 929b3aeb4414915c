"""Reading held-out text."""

import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.processors import TemplateProcessing

from serving.errors import ConfigError
from serving.gateway.api.tokenizer import Tokenizer
from serving.tools.evaluate.intervals import BLOCK_TOKENS, Estimate, block_sums, bootstrap_mean, mean_and_error
from serving.tools.evaluate.perplexity import WindowScores, sum_up
from serving.tools.evaluate.texts import (
    Text,
    TextWindow,
    check_same_tokens,
    cut_windows,
    read_documents,
    read_text,
    text_prefix,
)

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


def test_what_is_predicted_is_counted_up_to_limits(tmp_path: Path, tokenizer: Tokenizer, beginning: Tokenizer) -> None:
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
        ("a.jsonl", b"{}", 'line 1 is not a document: each line must be {"text": "..."}'),
        ("a.jsonl", b'{"text": "x"}\n[', "line 2 is not JSON"),
    ],
)
def test_files_that_hold_no_text(tmp_path: Path, tokenizer: Tokenizer, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        read_text(tmp_path / name, tokenizer)
    assert message in str(raised.value)


def test_files_that_are_not_there_or_no_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the text .*nowhere.txt: No such file"):
        read_text(tmp_path / "nowhere.txt", tokenizer)
    path = tmp_path / "odd.jsonl"
    path.write_text('{"text": "fine"}\n{"text": "hello \\ud800 world"}\n')
    with pytest.raises(ConfigError, match="line 2 holds half a surrogate pair"):
        read_documents(path)


def test_two_models_must_read_the_same_tokens(checkpoint: Path, tokenizer: Tokenizer, beginning: Tokenizer) -> None:
    check_same_tokens(tokenizer, tokenizer, ["some text"])
    with pytest.raises(ConfigError, match="split this text differently"):
        check_same_tokens(tokenizer, beginning, ["some text"])
    text = (checkpoint / "tokenizer.json").read_text().replace('"Ġw300"', '"Ġother"')
    other = Tokenizer.from_raw(RawTokenizer.from_str(text), SPECIAL)
    with pytest.raises(ConfigError, match=r"different tokenizers \(token 'Ġother' is missing here, 300 there\)"):
        check_same_tokens(tokenizer, other, [])


def test_the_example_of_the_module() -> None:
    assert cut_windows(range(10), 6, 3) == [
        TextWindow((0, 1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6)),
        TextWindow((3, 4, 5, 6, 7, 8), (7, 8, 9), begins=False),
    ]
    assert cut_windows(range(10), 6, 3)[1].first_row == 3


@pytest.mark.parametrize("tokens", [[], [7]])
def test_nothing_to_predict(tokens: list[int]) -> None:
    assert cut_windows(tokens, 4, 4) == []


@given(st.integers(2, 200), st.integers(1, 40), st.data())
def test_each_token_once_with_enough_to_look_back_at(length: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    windows = cut_windows(range(length), context, stride)
    assert [target for window in windows for target in window.targets] == list(range(1, length))
    for window in windows:
        assert 1 <= len(window.targets) <= len(window.tokens) <= context
        # Tokens are their own positions: the last fed one is just before the last target.
        assert window.tokens == tuple(range(window.tokens[0], window.targets[-1]))
        assert window.targets == tuple(range(window.tokens[window.first_row] + 1, window.targets[-1] + 1))
        looks_back = window.targets[0] - window.tokens[0]
        assert looks_back >= min(window.targets[0], context - stride + 1)


def test_blocks_weights_and_errors() -> None:
    sums, counts = block_sums([np.ones(BLOCK_TOKENS + 3), np.full(2, 5.0)])
    assert counts.tolist() == [BLOCK_TOKENS, 3, 2]
    assert sums.tolist() == [BLOCK_TOKENS, 3, 10]
    assert bootstrap_mean([np.ones(1), np.zeros(99)]).value == pytest.approx(0.01)
    assert bootstrap_mean([np.array([1.0, 3.0])]) == Estimate(2.0)
    assert Estimate(2.0).map(math.exp) == Estimate(math.exp(2.0))
    values = [1.0, 0.0, 1.0, 1.0]
    mean, error = mean_and_error(values)
    assert mean == 0.75
    assert error == pytest.approx(statistics.stdev(values) / 2)
    assert mean_and_error([1.0]) == (1.0, None)


def test_the_interval_is_as_wide_as_theory_says() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(2.0, 1.0, BLOCK_TOKENS) for _ in range(100)]
    found = bootstrap_mean(parts)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    assert found.high - found.low == pytest.approx(2 * 1.96 / math.sqrt(100 * BLOCK_TOKENS), rel=0.25)
    assert bootstrap_mean(parts) == found

    rng = np.random.default_rng(0)
    alike = bootstrap_mean([np.full(BLOCK_TOKENS, rng.normal()) for _ in range(100)])
    assert alike.low is not None
    assert alike.high is not None
    assert alike.high - alike.low > 0.3


def test_a_short_stride_makes_nothing_look_surer() -> None:
    rng = np.random.default_rng(0)
    level = np.repeat(rng.normal(3.0, 1.0, 64), BLOCK_TOKENS)
    text = Text("some", (), nbytes=1, words=1)

    def width(stride: int) -> float:
        parts = [level[i : i + stride] for i in range(0, len(level), stride)]
        none = np.empty(0)
        scores = [WindowScores(part, none, none, none, begins=i == 0) for i, part in enumerate(parts)]
        found = sum_up("some", [text], scores).perplexity
        assert found.low is not None
        assert found.high is not None
        return found.high - found.low

    assert width(16) == pytest.approx(width(2048))
