"""The ids that clients give their requests, in a header or in the body."""

MAX_REQUEST_ID = 128


def usable_request_id(value: str | None) -> str | None:
    """The client's id when it is safe to repeat in a header and a log: printable ASCII of moderate length."""
    if value and len(value) <= MAX_REQUEST_ID and value.isascii() and value.isprintable():
        return value
    return None
