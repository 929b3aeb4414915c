import pytest

from loadgen.client.reply import ERROR_CHARS, body_error, error_text


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"error": {"message": "no such model", "code": 404}}', "no such model"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', '[{"loc":["body"],"msg":"field required"}]'),
        (b'{"message": "slow\\ndown"}', "slow down"),
        (b"<html>\n<h1>502</h1></html>", "<html> <h1>502</h1></html>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b'{"error": "caf\xe9"}', '{"error": "caf\ufffd"}'),  # Latin-1 said to be JSON
        (b"[" * 5000 + b"]" * 5000, "[" * ERROR_CHARS),  # what FastAPI makes of a nested body: it shows it again
        (b"", ""),
    ],
)
def test_the_text_of_an_error_answer(body: bytes, shown: str) -> None:
    assert body_error(body) == shown


def test_long_errors_are_cut() -> None:
    assert len(body_error(b"x" * 10_000)) == ERROR_CHARS
    assert len(error_text("x" * 10_000)) == ERROR_CHARS
