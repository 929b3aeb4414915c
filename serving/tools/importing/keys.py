"""Keys of a GGUF file's architecture, read by type; an unread key is refused by its name."""

from serving.errors import ModelError
from serving.model.config_values import number, whole
from serving.tools.importing.gguf_file import GgufFile, Value


class ArchitectureKeys:
    """Keys `{architecture}.…` of a file; names below are without that prefix.

    Numbers have the bounds of those in a config.json. Reads are recorded for `refuse_unread`.
    """

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._prefix = architecture + "."
        names = (name for name in file.values if name.startswith(self._prefix))
        self._values = {name.removeprefix(self._prefix): file.values[name] for name in names}
        self._read: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether there is such a key."""
        return name in self._values

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A count.

        Raises: ModelError if it is missing without a default, no whole number, or below `least`.
        """
        self._read.add(name)
        try:
            return whole(self._values, name, default, least=least)
        except (KeyError, TypeError, ModelError) as error:
            raise self._wrong(name, error) from error

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number.

        Raises: ModelError if it is missing without a default, or no number.
        """
        self._read.add(name)
        try:
            return number(self._values, name, default)
        except (KeyError, TypeError, ModelError) as error:
            raise self._wrong(name, error) from error

    def flag(self, name: str, default: bool) -> bool:
        """A switch.

        Raises: ModelError if it is none.
        """
        value = self._one(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, TypeError())
        return value

    def text(self, name: str, default: str) -> str:
        """A word.

        Raises: ModelError if it is none.
        """
        value = self._one(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, TypeError())
        return value

    def pass_over(self, *names: str) -> None:
        """Count keys as read: results do not depend on them."""
        self._read.update(names)

    def refuse_unread(self) -> None:
        """Raises: ModelError if there is a key that no other method has read: it may change results."""
        unread = sorted(self._values.keys() - self._read)
        if unread:
            listed = ", ".join(self._prefix + name for name in unread[:3])
            raise ModelError(f"{listed} {'is' if len(unread) == 1 else 'are'} not supported, and may change results")

    def _one(self, name: str, default: Value) -> Value:
        self._read.add(name)
        return self._values.get(name, default)

    def _wrong(self, name: str, error: Exception) -> ModelError:
        if isinstance(error, KeyError):
            return ModelError(f"it lacks the key {self._prefix}{name}")
        if isinstance(error, TypeError):
            return ModelError(
                f"{self._prefix}{name} is {repr(self._values[name])[:40]}, which is not of the type it needs"
            )
        return ModelError(f"{self._prefix}{error}")
