"""Held-out text from files, as token ids.

A `.jsonl` file holds one document per line (`{"text": "..."}`), any other file is one document.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hardware.nesting import parse_json
from hardware.regular_file import read_regular_text
from serving.errors import ConfigError
from serving.gateway.api.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Text:
    """One file.

    Args:
        documents: token ids, each with what the tokenizer puts before a text; at least two ids.
        nbytes, words: of the predicted part, so without the first token.
    """

    name: str
    documents: tuple[tuple[int, ...], ...]
    nbytes: int
    words: int


def read_text(
    path: Path, tokenizer: Tokenizer, *, max_documents: int | None = None, max_tokens: int | None = None
) -> Text:
    """Read and tokenize one file.

    Args:
        max_documents: only this many documents, the first ones. max_tokens: only this many tokens, the first ones.
    Raises: ConfigError if there is no such file, it is not UTF-8, a line is not a document, or no token is left to
        predict.
    """
    prefix = text_prefix(tokenizer)
    documents: list[tuple[int, ...]] = []
    nbytes = words = 0
    left = max_tokens
    for text in read_documents(path)[:max_documents]:
        ids = tuple([*prefix, *tokenizer.encode(text, add_special_tokens=False)][:left])
        if len(ids) < 2:
            continue
        read = tokenizer.decode(ids[1:])
        documents.append(ids)
        nbytes += len(read.encode())
        words += len(read.split())
        if left is not None:
            left -= len(ids)
    if not documents:
        raise ConfigError(f"{path} holds no text to predict: it needs at least two tokens")
    return Text(path.name, tuple(documents), nbytes, words)


def read_documents(path: Path) -> list[str]:
    """The documents of a file.

    Raises: ConfigError if there is no such file, it is not UTF-8, or a line of a `.jsonl` has no `text`.
    """
    try:
        content = read_regular_text(path)
    except OSError as error:
        raise ConfigError(f"cannot read the text {path}: {error.strerror or error}; --text names files") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text: convert it first") from None
    if path.suffix != ".jsonl":
        return [content]
    lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    return [_document(line, f"{path}, line {number}") for number, line in lines]


def text_prefix(tokenizer: Tokenizer) -> list[int]:
    """Tokens that the tokenizer puts before a text: its begin-of-text token, if it adds one."""
    added = tokenizer.encode("", add_special_tokens=True)
    begin = tokenizer.special_tokens.get("bos_token")
    return added[:1] if added and begin is not None and added[0] == tokenizer.raw.token_to_id(begin) else []


def check_same_tokens(own: Tokenizer, reference: Tokenizer, samples: Sequence[str]) -> None:
    """Checks that two models read the same tokens, without which their distributions cannot be compared.

    Raises: ConfigError if a token has another id, or a sample is cut in another way.
    """
    ours, theirs = own.raw.get_vocab(), reference.raw.get_vocab()
    odd = next((token for token in sorted(ours.keys() | theirs.keys()) if ours.get(token) != theirs.get(token)), None)
    if odd is not None:
        raise ConfigError(
            f"the model and the reference have different tokenizers (token {odd!r} is {ours.get(odd, 'missing')} here,"
            f" {theirs.get(odd, 'missing')} there): compare models of one family"
        )
    for sample in samples:
        if own.encode(sample, add_special_tokens=True) != reference.encode(sample, add_special_tokens=True):
            raise ConfigError(
                "the tokenizers of model and reference split this text differently: compare "
                "models with the same tokenizer"
            )


def _document(line: str, where: str) -> str:
    try:
        value = parse_json(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None
    text = value.get("text") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise ConfigError(f'{where} is not a document: each line must be {{"text": "..."}}')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where} holds half a surrogate pair ({text[error.start]!r}): write it as UTF-8") from None
    return text


# Cutting a document into windows so that each of its tokens is predicted exactly once.
#
#         document   0 1 2 3 4 5 6 7 8 9          context 6, stride 3
#         window 1   0 1 2 3 4 5                  predicts 1 ... 6
#         window 2         3 4 5 6 7 8            predicts 7 8 9, with 3 ... 6 as context
#
# A stride equal to the context costs least; a smaller one gives every token at least `context - stride` tokens to look
# back at.


@dataclass(frozen=True, slots=True)
class TextWindow:
    """One teacher-forced pass.

    Args:
        tokens: fed, at most `context` of them.
        targets: expected successors of the last `len(targets)` fed tokens.
        begins: whether it is the first one of its document.
    """

    tokens: tuple[int, ...]
    targets: tuple[int, ...]
    begins: bool = True

    @property
    def first_row(self) -> int:
        """The fed position that predicts the first target."""
        return len(self.tokens) - len(self.targets)


def cut_windows(tokens: Sequence[int], context: int, stride: int) -> list[TextWindow]:
    """All windows of a document; its first token is context only.

    Args:
        context: most tokens fed at once. stride: `1 ... context`, distance between the starts of two windows.
    Returns: none for a document of fewer than two tokens.
    """
    assert 1 <= stride <= context, "the stride must not exceed the context"
    windows: list[TextWindow] = []
    start, next_target = 0, 1
    while next_target < len(tokens):
        stop = min(start + context, len(tokens) - 1)
        windows.append(TextWindow(tuple(tokens[start:stop]), tuple(tokens[next_target : stop + 1]), not windows))
        next_target = stop + 1
        start += stride
    return windows
