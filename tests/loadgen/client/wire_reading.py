"""Takes apart what the client wrote."""

import httptools


class _Reading:
    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""
        self.complete = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        assert name.decode().lower() not in self.headers, f"{name!r} twice"
        self.headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete += 1


def read_request(wire: bytes) -> tuple[dict[str, str], bytes]:
    """Headers (names in small letters) and body of exactly one request; its target stands under ":target"."""
    reading = _Reading()
    httptools.HttpRequestParser(reading).feed_data(wire)
    assert reading.complete == 1
    return reading.headers | {":target": wire.split(b" ", 2)[1].decode()}, reading.body
