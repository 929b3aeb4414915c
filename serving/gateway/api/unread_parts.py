"""What stands in a conversation in place of an image or a document, which a model of text cannot read."""


def unread(kind: str, name: object = None) -> str:
    """The words.

    Args:
        name: of the file, where it has one.
    """
    shown = f"{kind} '{name[:80]}'" if isinstance(name, str) and name else kind
    return f"[{shown}: not read by this model]"
