"""Images, documents and sound in a conversation: the model reads text only, so it gets a note in their place."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.config.gateway import Media
from serving.errors import InvalidRequestError
from serving.gateway.api.schema import ChatMessage
from serving.gateway.api.unknown_fields import printable

_CHAT = {
    "image_url": "image",
    "image": "image",
    "input_image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "file": "file",
    "input_file": "file",
}
"""Parts of chat messages, with the kind that their note names."""


def note(kind: str, name: object = None) -> str:
    """Text that replaces a part.

    Args:
        name: of the file, if it has one.
    """
    shown = f"{kind} '{name[:80]}'" if isinstance(name, str) and name else kind
    return f"[{shown}: not read by this model]"


@dataclass(frozen=True, slots=True)
class MediaNotes:
    """Notes of one request.

    Args:
        replaced: parts that were replaced, and others that were omitted, as named in the warning header.
    """

    rule: Media = "note"
    replaced: list[str] = field(default_factory=list)

    def place(self, kind: str, path: str, own_kind: str, name: object = None) -> str:
        """The note for a part.

        Args:
            own_kind: the client's word for `kind`.
        Raises: InvalidRequestError if media are refused.
        """
        if self.rule == "refuse":
            raise InvalidRequestError(
                f"'{path}': this model reads text only, and [gateway] media refuses what is not",
                param=path,
                code="unsupported_content",
            )
        self.replaced.append(f"{path} ({printable(own_kind)})")
        return note(kind, name)

    def in_chat(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Messages of a chat with notes in place of such parts.

        Raises: InvalidRequestError if media are refused.
        """
        return [self._message(one, f"messages[{number}].content") for number, one in enumerate(messages)]

    def _message(self, message: ChatMessage, path: str) -> ChatMessage:
        parts = message.content
        if not isinstance(parts, list) or not any(media_kind(part) for part in parts):
            return message
        return message.model_copy(
            update={"content": [self._part(part, f"{path}[{number}]") for number, part in enumerate(parts)]}
        )

    def _part(self, part: object, path: str) -> object:
        kind = media_kind(part)
        if kind is None or not isinstance(part, dict):
            return part
        file = part.get("file")
        name = file.get("filename") if isinstance(file, dict) else part.get("filename")
        return {"type": "text", "text": self.place(kind, path, part["type"], name)}


def media_kind(part: object) -> str | None:
    """Content of a part of a chat message, if it is no text."""
    kind = part.get("type") if isinstance(part, dict) else None
    return _CHAT.get(kind) if isinstance(kind, str) else None
