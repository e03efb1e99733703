"""One line an event, whoever speaks, and no secrets in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from holdfast.logs import configure_logging, scrub_secrets

TOUCHED = ("", "hypercorn.error", "hypercorn.access", "sqlalchemy", "alembic", "pykka", "httpx", "httpcore")


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    """Where the log goes; all that configuring touches is put back afterwards."""
    loggers = [logging.getLogger(name) for name in TOUCHED]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield io.StringIO()
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
    structlog.reset_defaults()


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_lines_carry_level_logger_time_and_fields(out: io.StringIO) -> None:
    configure_logging("json", stream=out)
    structlog.get_logger("holdfast.x").info("it happened", amount_micro=5, path="top/a")
    structlog.get_logger("holdfast.x").debug("not told")
    (line,) = lines(out)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "it happened",
        "level": "info",
        "logger": "holdfast.x",
        "amount_micro": 5,
        "path": "top/a",
    }


@pytest.mark.parametrize("name", ["hypercorn.error", "hypercorn.access", "sqlalchemy.engine", "alembic", "pykka"])
def test_what_libraries_log_takes_the_same_way_once(out: io.StringIO, name: str) -> None:
    logging.getLogger(name.split(".engine", maxsplit=1)[0]).addHandler(logging.StreamHandler(out))
    configure_logging("json", stream=out)
    logging.getLogger(name).error("lost %s for %s", "ada@example.org", "password=hunter2")
    (line,) = lines(out)
    assert (line["event"], line["logger"], line["level"]) == ("lost *** for password=***", name, "error")


def test_statements_of_the_database_layer_stay_untold(out: io.StringIO) -> None:
    configure_logging("json", level="debug", stream=out)
    logging.getLogger("sqlalchemy.engine").info("INSERT INTO account VALUES ('Ada')")
    assert out.getvalue() == ""


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_secrets_are_scrubbed_in_fields_texts_and_tracebacks(out: io.StringIO, log_format: Any) -> None:
    configure_logging(log_format, stream=out)
    try:
        raise ValueError("password=hunter2")
    except ValueError:
        structlog.get_logger("x").exception(
            "for ada@example.org", api_key="hunter3", nested={"session_token": "hunter4"}, raw=b"hunter5"
        )
    text = out.getvalue()
    assert "ValueError" in text
    assert "hunter" not in text
    assert "ada@" not in text


def test_configuring_again_replaces_what_was_set_up(out: io.StringIO) -> None:
    configure_logging("json", stream=io.StringIO())
    configure_logging("json", stream=out)
    logging.getLogger("anyone").warning("once")
    assert len(lines(out)) == 1
    with pytest.raises(ValueError, match="unknown log level"):
        configure_logging("json", level="loud")


def test_keys_that_only_sound_secret_are_kept() -> None:
    event = {"tokens_in": 4, "api_key_id": "key_1", "otp_id": "otp_1", "code": "insufficient_credit", "otp": 123456}
    assert scrub_secrets(None, "info", event) == {**event, "otp": "***"}
