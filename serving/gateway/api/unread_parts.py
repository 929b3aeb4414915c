"""Placeholders for images and documents, which a text model cannot read."""


def unread(kind: str, name: object = None) -> str:
    """Text that replaces the part.

    Args:
        name: of the file, if it has one.
    """
    shown = f"{kind} '{name[:80]}'" if isinstance(name, str) and name else kind
    return f"[{shown}: not read by this model]"
