"""The object that every error is."""

from httpx import Response


def check(reply: Response, status: int, param: str | None = None, code: str | None = None, text: str = "") -> None:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    body = reply.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["param"] == param
    if code is not None:
        assert error["code"] == code
    assert text in error["message"]
