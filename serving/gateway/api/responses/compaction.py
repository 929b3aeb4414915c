"""Compaction: a summary replaces a conversation. A last input item `compaction_trigger` requests it.

    items ... compaction_trigger   ──►  one `compaction` item, whose `encrypted_content` is the summary
    compaction, further items      ──►  a prompt that starts with the summary

The served model generates the summary. It is not encrypted, so that every gateway can read it, also after a restart;
the client has sent its content anyway. Compactions of other providers cannot be read and are skipped.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from serving.errors import InvalidRequestError

SEALED = "cloudmatrix:"
"""Prefix of our `encrypted_content`: the text itself, unencrypted, for clients that store nothing else of it."""
TRIGGER = "compaction_trigger"
COMPACTIONS = ("compaction", "compaction_summary", "context_compaction")
"""Types of an item that holds a summary."""
REQUEST = (
    "Summarise the conversation so far, so that it can be continued from your summary alone. Keep the goal, the "
    "decisions and their reasons, the results so far, names of files and functions that matter, and what is left to "
    "do. Write the summary only."
)
"""The user turn that requests the summary from the model."""
LONGEST = 4096
"""Tokens of a summary, unless the request sets `max_output_tokens`."""
_ENCRYPTED = re.compile(r"gAAA[\w-]*={0,2}")
"""Ciphertext of OpenAI's, a Fernet token."""
_HEAD = "Summary of the conversation so far:\n"
_KEPT = ("system", "developer")

PathItem = tuple[str, object]
"""An item with its path in the request."""


def unsealed(item: Mapping[str, Any]) -> str | None:
    """Text that this server sealed; None if there is none, or another server sealed it."""
    sealed = item.get("encrypted_content")
    return sealed[len(SEALED) :] if isinstance(sealed, str) and sealed.startswith(SEALED) else None


def readable(item: Mapping[str, Any]) -> str | None:
    """Text of a part's `encrypted_content` that no other server encrypted; None if one did.

    Codex declares some arguments encrypted, e.g. the task of a new agent, and repeats what the model wrote there as
    `encrypted_content`. Models served here write plain text.
    """
    text = item.get("encrypted_content")
    ours = unsealed(item)
    if ours is not None or not isinstance(text, str):
        return ours
    return None if _ENCRYPTED.fullmatch(text) else text


def summary_turn(item: Mapping[str, Any]) -> str | None:
    """The user turn that replaces a compaction; None if another server made it."""
    text = unsealed(item)
    return None if text is None else _HEAD + text


def wants_compaction(given: str | Sequence[object]) -> bool:
    """Whether an input requests a summary: its last item is the trigger.

    Raises: InvalidRequestError for a trigger in another place.
    """
    places = [] if isinstance(given, str) else [at for at, item in enumerate(given) if _kind(item) == TRIGGER]
    if places and (places[0] != len(given) - 1 or len(given) == 1):
        path = f"input[{places[0]}]"
        message = f"'{path}': a {TRIGGER} must be the last item, after those to summarise"
        raise InvalidRequestError(message, param=path, code="invalid_value")
    return bool(places)


def triggered(given: str | Sequence[object]) -> list[object]:
    """An input that requests a summary."""
    items: list[object] = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    return items if wants_compaction(items) else [*items, {"type": TRIGGER}]


def said_by_user(items: Sequence[object]) -> list[object]:
    """The user's messages since the last readable compaction, which stay beside a new one."""
    kept = since_compaction([("", item) for item in items])
    return [item for _, item in kept if isinstance(item, dict) and _kind(item) in (None, "message")
            and item.get("role") == "user"]  # fmt: skip


def since_compaction(items: Sequence[PathItem]) -> list[PathItem]:
    """The items that still count: the last readable compaction, what follows it, and earlier instructions and tools."""
    readable = [at for at, (_, item) in enumerate(items) if _kind(item) in COMPACTIONS and _readable(item)]
    start = readable[-1] if readable else 0
    kept = [one for one in items[:start] if _instructs(one[1])]
    return [one for one in (*kept, *items[start:]) if _kind(one[1]) != TRIGGER]


def _kind(item: object) -> object:
    return item.get("type") if isinstance(item, dict) else None


def _instructs(item: object) -> bool:
    return isinstance(item, dict) and (item.get("role") in _KEPT or item.get("type") == "additional_tools")


def _readable(item: object) -> bool:
    return isinstance(item, dict) and unsealed(item) is not None
