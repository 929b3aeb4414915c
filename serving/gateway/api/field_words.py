"""Names of fields in the dialect of the request.

A request of another dialect becomes a chat or completion request, whose checks name their own fields. This module
converts those names to the client's.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from serving.errors import RequestError


class FieldWords:
    """Client's paths of fields; each replacement also applies to all paths below it."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = sorted(words.items(), key=lambda pair: -len(pair[0]))

    def word(self, path: str) -> str:
        """The client's path: `messages[2].content` to `input[4].content`. Unknown ones are returned unchanged."""
        for ours, theirs in self._words:
            if path == ours or (path.startswith(ours) and path[len(ours)] in ".["):
                return theirs + path[len(ours) :]
        return path

    @contextmanager
    def spoken(self) -> Iterator[None]:
        """Convert field names of errors that leave the block to the client's."""
        try:
            yield
        except RequestError as error:
            if error.param is not None and (theirs := self.word(error.param)) != error.param:
                error.args = (str(error).replace(f"'{error.param}'", f"'{theirs}'"), *error.args[1:])
                error.param = theirs
            raise
