"""Names of fields in the words of the dialect that a request came in.

A request of another dialect becomes a chat or completion request, whose checks name their own fields. Here those names
become the ones that the client wrote.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from serving.errors import RequestError


class FieldWords:
    """Paths of fields, each with the path that stands for it and for all below it."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = sorted(words.items(), key=lambda pair: -len(pair[0]))

    def word(self, path: str) -> str:
        """The client's path: `messages[2].content` to `input[4].content`. Unknown ones stay."""
        for ours, theirs in self._words:
            if path == ours or (path.startswith(ours) and path[len(ours)] in ".["):
                return theirs + path[len(ours) :]
        return path

    @contextmanager
    def spoken(self) -> Iterator[None]:
        """Errors that leave the block name fields in the client's words."""
        try:
            yield
        except RequestError as error:
            if error.param is not None and (theirs := self.word(error.param)) != error.param:
                error.args = (str(error).replace(f"'{error.param}'", f"'{theirs}'"), *error.args[1:])
                error.param = theirs
            raise
