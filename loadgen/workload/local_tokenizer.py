"""A `TokenCounter` on a tokenizer.json, by the `tokenizers` package, which is imported only when one is opened."""

from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class LocalTokenizer:
    """`TokenCounter` by the model's own tokenizer; special tokens are counted as the completions endpoint would."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text))

    def pieces(self, text: str) -> list[str] | None:
        return list(self._tokenizer.encode(text).tokens)

    def ids(self, text: str) -> list[int] | None:
        return list(self._tokenizer.encode(text).ids)


def open_tokenizer(where: Path) -> LocalTokenizer:
    """The tokenizer in a file or in a model's folder. Does not search other places and never downloads.

    Raises: UsageError if there is none, or if it cannot be read as one.
    """
    path = where / "tokenizer.json" if where.is_dir() else where
    if not path.is_file():
        raise UsageError(f"no tokenizer at {path}; --tokenizer takes a tokenizer.json or its folder, server, or none")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError("a local tokenizer needs the package `tokenizers`; or use --tokenizer server") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exception for every error of the file
        raise UsageError(f"{path} is not a tokenizer.json ({error})") from None
    # A file may request truncation and padding to a fixed length: both would spoil every count.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return LocalTokenizer(tokenizer)
