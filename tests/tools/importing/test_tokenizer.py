"""Tokenizers made of GGUF's lists give the ids of those that the lists were taken from."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from serving.errors import ModelError
from serving.gateway.api.tokenizer import Tokenizer as ServedTokenizer
from serving.tools.importing.gguf_file import Value
from serving.tools.importing.gguf_tokenizer import SPLITTINGS, GgufVocabulary, build_tokenizer

TEXTS = (
    "The capital of France is Paris.",
    "  two  spaces,\ttabs and\n\n\nlines \r\n end ",
    "it's we'LL I'D don't 1234567 3.14159 x2y33",
    "def f(x):\n    return x**2  # square\n",
    "Übermut naïve café ΑΒΓ αβγ Жизнь 你好，世界。 こんにちは カタカナ 안녕하세요 العربية हिन्दी",
    "🐸🐸 emoji 👨‍👩‍👧 and \u0301 marks e\u0301 \ufb01 \x00 control",
    "<|im_start|>user\nHello<|im_end|>",
    "CamelCaseWords snake_case_words UPPER lower $100 50% a+b=c #tag @you /path/to\\file {json: [1, 2]}",
    "",
)
CORPUS = [*TEXTS, "the cat and the dog and the other thing " * 20, "0 1 2 12 123 1234 " * 9, "日本語の文章です。" * 9]


def trained(kind: str) -> Tokenizer:
    """A byte-level tokenizer that splits as one kind does."""
    splitting = SPLITTINGS[kind]
    raw = Tokenizer(models.BPE(ignore_merges=splitting.ignore_merges))
    raw.pre_tokenizer = splitting.pre_tokenizer()
    if (normalizer := splitting.normalizer()) is not None:
        raw.normalizer = normalizer
    raw.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True) for text in ("<|bos|>", "<|im_start|>", "<|im_end|>")]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=900, special_tokens=special, initial_alphabet=alphabet)
    )
    raw.add_tokens([AddedToken("<tool>", normalized=False)])
    return raw


def lists_of(raw: Tokenizer, **keys: Value) -> dict[str, Value]:
    """Keys of a GGUF file."""
    told = json.loads(raw.to_str())
    special = {token["content"]: token["special"] for token in told["added_tokens"]}
    vocab = raw.get_vocab(with_added_tokens=True)
    tokens = sorted(vocab, key=lambda token: vocab[token])
    kinds = [3 if special.get(token) else 4 if token in special else 1 for token in tokens]
    merges = [" ".join(merge) for merge in told["model"]["merges"]]
    lists: dict[str, Value] = {"model": "gpt2", "tokens": tokens, "token_type": kinds, "merges": merges}
    return {f"tokenizer.ggml.{name}": value for name, value in (lists | keys).items()}


def built(values: dict[str, Value], rows: int = 1 << 16) -> Tokenizer:
    return build_tokenizer(GgufVocabulary.read(values, rows)).raw


@pytest.mark.parametrize("kind", ["smollm", "gpt-2", "llama-bpe", "qwen2", "tekken", "deepseek-llm", "deepseek-v3"])
def test_byte_level_tokenizers(kind: str) -> None:
    source = trained(kind)
    ours = built(lists_of(source, pre=kind, add_bos_token=False))
    for text in (*TEXTS, "a <tool> call <|bos|>"):
        assert ours.encode(text).ids == source.encode(text).ids, text
        assert ours.decode(ours.encode(text).ids) == source.decode(source.encode(text).ids)


@pytest.mark.parametrize(
    ("kind", "text", "pieces"),
    [
        ("smollm", "I'll pay 1234€", ["I", "'ll", "Ġpay", "Ġ", "1", "2", "3", "4", "âĤ¬"]),
        ("gpt-2", "I'll pay 1234€", ["I", "'ll", "Ġpay", "Ġ1234", "âĤ¬"]),
        ("llama-bpe", "I'LL pay 1234€", ["I", "'LL", "Ġpay", "Ġ", "123", "4", "âĤ¬"]),
        ("qwen2", "I'LL pay 1234€", ["I", "'LL", "Ġpay", "Ġ", "1", "2", "3", "4", "âĤ¬"]),
        ("tekken", "CamelCase 12", ["Camel", "Case", "Ġ", "1", "2"]),
        ("deepseek-v3", "你好 x1234", ["ä½łå¥½", "Ġx", "123", "4"]),
        ("deepseek-llm", "Ab 你好\n12.", ["Ab", "Ġ", "ä½łå¥½", "Ċ", "12", "."]),
        ("deepseek-llm", "\u0561\u0562", ["Õ¡Õ¢"]),
        ("deepseek-coder", "Ab 12", ["Ab", "Ġ", "1", "2"]),
    ],
)
def test_text_is_split_as_the_models_were_taught(kind: str, text: str, pieces: list[str]) -> None:
    found = SPLITTINGS[kind].pre_tokenizer().pre_tokenize_str(text)
    assert [piece for piece, _ in found] == pieces


def test_the_first_token_is_added_where_the_model_wants_it() -> None:
    source = trained("llama-bpe")
    bos = source.encode("<|bos|>").ids[0]
    plain = source.encode("the cat", add_special_tokens=False).ids
    for keys, wanted in (
        ({}, [bos, *plain]),
        ({"add_bos_token": False}, plain),
        ({"add_eos_token": True, "eos_token_id": 2}, [bos, *plain, 2]),
    ):
        ours = built(lists_of(source, pre="llama-bpe", bos_token_id=bos, **keys))
        assert ours.encode("the cat").ids == wanted
        assert ours.encode("the cat", add_special_tokens=False).ids == plain
    assert built(lists_of(source, pre="qwen2", bos_token_id=bos)).encode("the cat").ids == plain


def sentence_piece() -> Tokenizer:
    """BPE with bytes for what has no token, as SentencePiece makes it."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator(CORPUS[:4] + CORPUS[-3:], trainers.BpeTrainer(vocab_size=400))
    told = json.loads(learner.to_str())["model"]
    merged = ["".join(merge) for merge in told["merges"]]
    letters = [token for token in told["vocab"] if token not in set(merged)]
    vocab = {piece: number for number, piece in enumerate((*pieces, *merged, *letters))}
    merges = [(left, right) for left, right in told["merges"]]
    raw = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    raw.add_special_tokens(["<unk>", "<s>", "</s>"])
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return raw


def sentence_piece_lists(raw: Tokenizer, **keys: Value) -> dict[str, Value]:
    """Keys of a GGUF file: the earlier a token was merged, the better its score."""
    vocab = raw.get_vocab()
    tokens = sorted(vocab, key=lambda token: vocab[token])
    lists: dict[str, Value] = {
        "model": "llama", "tokens": tokens, "token_type": [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)],
        "scores": [0.0] * 259 + [-float(rank) for rank in range(len(tokens) - 259)], "bos_token_id": 1,
        "eos_token_id": 2, "unknown_token_id": 0,
    }  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in (lists | keys).items()}


def test_tokenizers_of_sentence_piece() -> None:
    source = sentence_piece()
    ours = built(sentence_piece_lists(source))
    for text in (*TEXTS, "▁ at the </s> end", " the cat"):
        assert ours.encode(text).ids == source.encode(text).ids, text
        assert ours.decode(ours.encode(text).ids) == source.decode(source.encode(text).ids)
    assert len(ours.encode("the cat and the other thing").ids) < 15, "merges are used"


def test_sentence_piece_without_a_space_before_and_ends_of_answers() -> None:
    ours = built(sentence_piece_lists(sentence_piece(), add_space_prefix=False))
    assert ours.decode(ours.encode(" the cat").ids) == " the cat"
    assert ours.encode("the", add_special_tokens=False).tokens[0] != "▁the"
    lists = lists_of(trained("smollm"), eos_token_id=0, eot_token_id=1)
    assert GgufVocabulary.read(lists, 1 << 16).ends() == [0, 1, 2], "the file's own, then <|im_end|>"


def test_a_served_folder_reads_what_was_made(tmp_path: Path) -> None:
    made = build_tokenizer(GgufVocabulary.read(sentence_piece_lists(sentence_piece()), 1 << 16))
    made.raw.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(made.config))
    served = ServedTokenizer.from_folder(tmp_path)
    assert served.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert served.eos_id == 2
    assert served.decode(served.encode("the cat 🐸", add_special_tokens=True)) == "the cat 🐸"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model": "bert"}, "of the kind 'bert'; 'gpt2' and 'llama' are read"),
        (
            {"pre": "martian"},
            "splits text in the way 'martian', which is not supported; supported are chatglm-bpe, deepseek-",
        ),
        ({"tokens": []}, "lacks the list tokenizer.ggml.tokens"),
        ({"tokens": 5}, "lacks the list tokenizer.ggml.tokens"),
        ({"merges": [1, 2]}, "lacks the list tokenizer.ggml.merges"),
        ({"merges": ["Q Zq"]}, "tokenizer.ggml.merges has 'Q Zq', which is not made of its tokens"),
        ({"merges": ["a"]}, "tokenizer.ggml.merges has 'a'"),
        ({"token_type": [1, 1]}, "token_type does not have one for each of the "),
        ({"bos_token_id": 70_000}, "bos_token_id is 70000, of "),
        ({"bos_token_id": "a"}, "bos_token_id is 'a', of "),
        ({"add_bos_token": 1}, "add_bos_token is 1, which is neither true nor false"),
        ({"model": "llama"}, "scores does not have one for each of the "),
    ],
)
def test_lists_that_do_not_fit(keys: dict[str, Value], words: str) -> None:
    wrong = {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
    with pytest.raises(ModelError) as caught:
        built(lists_of(trained("gpt-2"), pre="gpt-2") | wrong)
    assert words in str(caught.value)


def test_a_token_twice_and_more_tokens_than_rows() -> None:
    lists = lists_of(trained("gpt-2"), pre="gpt-2")
    tokens = lists["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    with pytest.raises(ModelError, match=f"its tokenizer has {len(tokens)} tokens, and its embedding 100 rows only"):
        built(lists, rows=100)
    with pytest.raises(ModelError, match="has a token twice"):
        built(lists | {"tokenizer.ggml.tokens": [*tokens[:-1], tokens[0]]})


def test_a_file_that_does_not_say_how_text_is_split(caplog: pytest.LogCaptureFixture) -> None:
    source = trained("gpt-2")
    ours = built(lists_of(source))
    assert ours.encode(TEXTS[2]).ids == source.encode(TEXTS[2]).ids
    assert "GPT-2's rule is used" in caplog.text
