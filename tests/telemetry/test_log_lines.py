"""Log lines as JSON."""

import json
import logging

import pytest

from serving.telemetry.log_lines import REQUEST, JsonLines


def line(*, message: str = "lost %s", extra: dict[str, str] | None = None, error: bool = False) -> dict[str, object]:
    logger, rows = logging.getLogger("serving.test_log_lines"), []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            rows.append(JsonLines().format(record))

    handler = Keep()
    logger.addHandler(handler)
    try:
        if error:
            try:
                raise ValueError("why")
            except ValueError:
                logger.exception(message, "ä\n", extra=extra)
        else:
            logger.warning(message, "ä\n", extra=extra)
    finally:
        logger.removeHandler(handler)
    (text,) = rows
    assert "\n" not in text, "one line each"
    shown: dict[str, object] = json.loads(text)
    return shown


def test_every_line_has_the_same_keys() -> None:
    shown = line()
    assert shown.keys() == {"time", "level", "host", "pid", "logger", "request_id", "message"}
    assert (shown["level"], shown["logger"], shown["message"]) == ("WARNING", "serving.test_log_lines", "lost ä\n")
    assert shown["host"]
    assert shown["request_id"] == ""


def test_the_request_is_the_tasks_or_the_one_that_is_named() -> None:
    token = REQUEST.set("mine")
    try:
        assert line()["request_id"] == "mine"
        assert line(extra={"request_id": "theirs"})["request_id"] == "theirs"
    finally:
        REQUEST.reset(token)


def test_a_trace_is_within_its_line() -> None:
    assert "ValueError: why" in str(line(error=True)["exception"])


@pytest.mark.parametrize("form", ["text", "json"])
def test_actors_log_in_the_form_that_is_asked_for(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    from serving.cluster.logs import log_beside_serve

    loggers = [logging.getLogger(name) for name in ("serving", "hardware")]
    before = [(one.handlers, one.level, one.propagate) for one in loggers]
    try:
        log_beside_serve(form)  # type: ignore[arg-type]
        logging.getLogger("serving.x").info("hello")
    finally:
        for one, (handlers, level, propagate) in zip(loggers, before, strict=True):
            one.handlers, one.level, one.propagate = handlers, level, propagate
    error = capsys.readouterr().err
    assert error == "" if form == "text" else json.loads(error)["message"] == "hello"
