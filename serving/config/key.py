"""One configuration key: its default, its range and the sentence that documents it, in one place.

A section is a frozen dataclass whose every field is made by `key`. The loader takes the range from here and
docs/reference/configuration.md is made of it, so that neither can disagree with the code. A section also declares:

    UPGRADE     how a change takes effect in a running system, see `upgrade_rules`
    LIVE_ONLY   names of the keys without effect in virtual time, separated by spaces; "*" = all; see `effects`
"""

from dataclasses import MISSING, Field, dataclass, field
from typing import Any, cast

_METADATA = "key"


@dataclass(frozen=True, slots=True)
class KeySpec:
    """Documentation and limits of one key.

    Args:
        doc: what it means, with its unit, short enough for a table cell.
        low: smallest number allowed; for text and lists, the least length.
        high: largest number allowed.
    """

    doc: str
    low: float | None = None
    high: float | None = None


def key(
    doc: str, *, default: object = MISSING, low: float | None = None, high: float | None = None, secret: bool = False
) -> Any:  # noqa: ANN401 - like dataclasses.field, stands where a value of the field's type is expected
    """Declare one key of a section.

    Args:
        default: value if the file does not name the key; without a default the key is required.
        secret: keep the value out of `repr`, hence out of logs.
    Returns: a dataclass field.
    """
    metadata = {_METADATA: KeySpec(doc, low, high)}
    if default is MISSING:
        return field(repr=not secret, metadata=metadata)
    return field(default=default, repr=not secret, metadata=metadata)


def key_spec(declared: Field[Any]) -> KeySpec:
    """The specification that `key` attached to a dataclass field."""
    return cast(KeySpec, declared.metadata[_METADATA])


def keys_of(section: str, names: str) -> tuple[str, ...]:
    """Keys of a section as rules name them: "section.name" for each of `names`, separated by spaces."""
    return tuple(f"{section}.{name}" for name in names.split())
