"""Logs: one line an event, from any library, without secrets."""

from __future__ import annotations

import io
import json
import logging
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import structlog

from holdfast.commands import cli
from holdfast.ledger.values import Prefix, new_id
from holdfast.settings.settings import load_settings
from holdfast.sockets.listening import CannotListen
from holdfast.start.single_process import serve
from holdfast.telemetry import logs
from holdfast.telemetry.logs import EVENTS_MAX, configure_logging, flush_logs, log_event, scrub_secrets
from holdfast.telemetry.scrubbing import _Registered, register_secrets, scrub
from holdfast.telemetry.traces import within_trace
from holdfast.wiring.provider_registry import ProviderRegistry

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TOUCHED = ("", "hypercorn.error", "hypercorn.access", "sqlalchemy", "alembic", "pykka", "httpx2", "httpcore2")


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Where the log goes; all that configuring touches is put back afterwards."""
    monkeypatch.setattr("holdfast.telemetry.scrubbing._registered", _Registered())
    loggers = [logging.getLogger(name) for name in TOUCHED]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield io.StringIO()
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
    structlog.reset_defaults()


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_lines_carry_time_level_event_and_fields(out: io.StringIO) -> None:
    configure_logging("json", stream=out)
    structlog.get_logger("holdfast.x").info("it happened", amount_micro=5, path="top/a")
    structlog.get_logger("holdfast.x").debug("not logged")
    (line,) = lines(out)
    assert line.pop("time").endswith("Z")
    assert line == {"level": "info", "event": "it happened", "path": "top/a", "amount_micro": 5}


@pytest.mark.parametrize("name", ["hypercorn.error", "hypercorn.access", "sqlalchemy.engine", "alembic", "pykka"])
def test_library_logs_are_written_once_in_the_same_format(out: io.StringIO, name: str) -> None:
    logging.getLogger(name.split(".engine", maxsplit=1)[0]).addHandler(logging.StreamHandler(out))
    configure_logging("json", stream=out)
    logging.getLogger(name).error("lost %s for %s", "ada@example.org", "password=hunter2")
    (line,) = lines(out)
    assert (line["event"], line["logger"], line["level"]) == ("lost *** for password=***", name, "error")


def test_sql_statements_are_not_logged(out: io.StringIO) -> None:
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


def test_configuring_again_replaces_the_handlers(out: io.StringIO) -> None:
    configure_logging("json", stream=io.StringIO())
    configure_logging("json", stream=out)
    logging.getLogger("anyone").warning("once")
    assert len(lines(out)) == 1
    with pytest.raises(ValueError, match="unknown log level"):
        configure_logging("json", level="loud")


def test_a_line_has_its_ids_then_the_trace_then_the_rest_in_order(out: io.StringIO) -> None:
    configure_logging("json", stream=out, worker=3)
    with within_trace(TRACE):
        structlog.get_logger("x").warning("it went", zeal=1, age_s=2, account_id="acct_1", path="a/b", none=None)
        log_event("task created", {"task_id": "task_1", "provider": "studio", "amount_micro": 5})
    names = [list(line) for line in lines(out)]
    assert names[0] == ["time", "level", "event", "path", "account_id", "trace_id", "worker", "age_s", "zeal"]
    assert names[1] == ["time", "level", "event", "task_id", "provider", "amount_micro", "trace_id", "worker"]
    assert {line["trace_id"] for line in lines(out)} == {"0af7651916cd43dd8448eb211c80319c"}


def test_the_console_shows_a_line_as_text(out: io.StringIO) -> None:
    configure_logging("console", stream=out)
    structlog.get_logger("x").warning("it\nwent", path="a/b", reason='he said "no"', nested={"a": [1, 2]})
    log_event("task created", {"task_id": "task_1", "amount_micro": 5, "error": None})
    first, second = out.getvalue().splitlines()
    assert first[24:] == r' warning  it\nwent  path=a/b nested="{\"a\":[1,2]}" reason="he said \"no\""'
    assert second[24:] == " info     task created  task_id=task_1 amount_micro=5"


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_text_moves_the_cursor_reorders_a_line_or_begins_one(out: io.StringIO, log_format: Any) -> None:
    configure_logging(log_format, stream=out)
    hostile = "a\x1b[2J\x9b31m\u202eb\u2028c\x7f\U000e0001\n2026-11-22T03:00:00.000Z error forged"
    try:
        raise ValueError(hostile)
    except ValueError:
        structlog.get_logger("x").exception(hostile, text=hostile, key=hostile, found={hostile: [hostile]})
    flush_logs()
    lines = out.getvalue().split("\n")
    assert all(line.isprintable() for line in lines)
    if log_format == "json":
        shown = json.loads(lines[0])
        assert (shown["event"], shown["text"]) == (hostile, hostile)
    else:
        assert [line[:2].isspace() for line in lines if line] == [False] + [True] * (len(lines) - 2)


def test_too_many_task_events_are_counted_and_orders_stay(out: io.StringIO) -> None:
    configure_logging("json", stream=out)
    for number in range(EVENTS_MAX + 2):
        log_event("task created", {"task_id": f"task_{number}"})
    log_event("order created", {"order_id": "ord_1"})
    flush_logs()
    *single, counted = lines(out)
    assert [line["event"] for line in single] == ["task created"] * EVENTS_MAX + ["order created"]
    assert (counted["level"], counted["event"], counted["counts"]) == ("info", "task events", {"task created": 2})


def test_each_task_event_is_written_at_level_debug(out: io.StringIO) -> None:
    configure_logging("json", level="debug", stream=out)
    for number in range(EVENTS_MAX + 2):
        log_event("task created", {"task_id": f"task_{number}"})
    flush_logs()
    assert len(lines(out)) == EVENTS_MAX + 2


def test_a_level_silences_what_is_below_it(out: io.StringIO) -> None:
    configure_logging("json", level="warning", stream=out)
    log_event("task created", {"task_id": "task_1"})
    structlog.get_logger("x").info("all is well")
    logging.getLogger("x").info("all is well")
    assert out.getvalue() == ""


def test_text_that_is_no_unicode_is_logged(out: io.StringIO) -> None:
    configure_logging("json", stream=out)
    structlog.get_logger("x").warning("lone \ud800", value={1: "\udc80"})
    (line,) = lines(out)
    assert line["event"] == "lone \ud800"


def test_repeated_lines_of_libraries_are_folded_at_the_end(out: io.StringIO) -> None:
    configure_logging("json", stream=out)
    for number in range(50):
        logging.getLogger("hypercorn.error").warning("too many %s", "requests", extra={"number": number})
    assert len(lines(out)) == 1
    flush_logs()
    assert [line.get("folded") for line in lines(out)] == [None, 49]


def test_a_folded_line_keeps_the_order_and_has_the_time_of_the_last(
    out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logging("json", stream=out)
    times = iter(f"2026-11-22T03:00:0{second}.000Z" for second in range(10))
    monkeypatch.setattr(logs, "time_of_line", lambda: next(times))
    for _ in range(3):
        logging.getLogger("hypercorn.error").warning("connection lost")
    logging.getLogger("hypercorn.error").warning("given up")
    flush_logs()
    assert [(line["time"][-7:], line.get("folded"), line.get("last")) for line in lines(out)] == [
        ("00.000Z", None, None),
        ("03.000Z", None, None),
        ("04.000Z", 2, "2026-11-22T03:00:02.000Z"),
    ]


def test_a_folded_line_does_not_repeat_the_traceback(out: io.StringIO) -> None:
    configure_logging("json", stream=out)
    for _ in range(3):
        try:
            raise ValueError("again")
        except ValueError:
            logging.getLogger("hypercorn.error").exception("unexpected fault")
    flush_logs()
    assert [("exception" in line, line.get("folded")) for line in lines(out)] == [(True, None), (False, 2)]


def test_alembic_says_nothing_of_what_each_start_repeats(out: io.StringIO) -> None:
    configure_logging("json", stream=out)
    logging.getLogger("alembic.runtime.migration").info("Context impl PostgresqlImpl.")
    assert out.getvalue() == ""


def test_keys_that_only_resemble_secrets_are_logged() -> None:
    event = {"tokens_in": 4, "api_key_id": "key_1", "otp_id": "otp_1", "code": "insufficient_credit", "otp": 123456}
    assert scrub_secrets(None, "info", event) == {**event, "otp": "***"}


def plain(number: int) -> str:
    """A secret that no pattern takes for one: short groups of random characters with a dash between."""
    rng = random.Random(number)
    return "-".join(
        "".join(rng.choices("bcdfghjkm", k=2)) + "".join(rng.choices("NPQRSTVWX", k=2)) for _ in range(9)
    )


def test_every_configured_secret_is_scrubbed_in_any_form(out: io.StringIO, tmp_path: Path) -> None:
    names = ("OPERATOR_TOKEN", "CALLBACK_SECRET", "SANDBOX_SECRET", "S3_SECRET_ACCESS_KEY", "CARD_API_KEY")
    given = {f"HOLDFAST_{name}": plain(number) for number, name in enumerate(names)}
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(
        f'[providers.box]\nkind = "cog"\nurl = "https://box.example"\nsecret = "{plain(6)}"\n'
        f'previous_secrets = ["{plain(7)}"]\ntoken = "{plain(8)}"\n'
        '[[models]]\nid = "m"\nmodality = "image"\ntype = "async"\ncreated = "2026-11-01"\n'
        'pricing = { mode = "per_request", unit_price = "1" }\nupstream = { provider = "box" }\n'
        'input_schema = { type = "object" }\n'
    )
    secrets = [*given.values(), plain(5), plain(6), plain(7), plain(8), "pass word/9", "mail/pw", "of-the-query"]
    for secret in secrets:
        assert scrub(f"it said {secret} twice") == f"it said {secret} twice"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = load_settings(
            {
                **given,
                "HOLDFAST_ENV": "production",
                "HOLDFAST_PORT": str(taken.getsockname()[1]),
                "HOLDFAST_DATA_DIR": str(tmp_path),
                "HOLDFAST_CATALOG": str(catalog),
                "HOLDFAST_ASSET_STORE": "s3",
                "HOLDFAST_S3_BUCKET": "results",
                "HOLDFAST_S3_ACCESS_KEY_ID": "AK1",
                "HOLDFAST_CARD_WEBHOOK_SECRET": plain(5),
                # The format of another company's keys is not known.
                "HOLDFAST_CARD_API_BASE": "https://cards.example",
                "HOLDFAST_DATABASE_URL": "postgresql://ada:pass%20word%2F9@db/holdfast?password=of-the-query",
                "HOLDFAST_SMTP_URL": "smtps://ada:mail%2Fpw@mail.example:465",
            }
        )
        with pytest.raises(CannotListen):
            serve(settings)
    ProviderRegistry(settings)
    configure_logging("json", stream=out)
    for secret in secrets:
        structlog.get_logger("holdfast.x").warning(f"it said {secret} twice", detail=[secret])
    assert {(line["event"], *line["detail"]) for line in lines(out)} == {("it said *** twice", "***")}


def test_secrets_are_scrubbed_in_every_encoding_short_ones_alone(out: io.StringIO) -> None:
    register_secrets(['say "so"\\now please', "holdfast", "abc", ""])
    register_secrets(["holdfast-and-more-of-the-same"])
    for text in (r'say "so"\now please', r"say \"so\"\\now please", "say%20%22so%22%5Cnow%20please"):
        assert scrub(f"x={text}.") == "x=***."
    assert scrub("holdfast, holdfasts, abc, xholdfast-and-more-of-the-samex") == "***, holdfasts, abc, x***x"
    long = "blank " * 20_000 + "holdfast-and-more-of-the-same"
    assert "holdfast-and" not in scrub(long, limit_chars=200_000)


@pytest.mark.parametrize("prefix", get_args(Prefix))
def test_a_path_keeps_an_identifier_of_any_kind(prefix: Prefix) -> None:
    path = f"/v2/some/{new_id(prefix)}/more"
    assert scrub(path) == path


@pytest.mark.usefixtures("out")
def test_a_commands_log_goes_to_stderr_scrubbed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", lambda: structlog.get_logger("holdfast.x").warning("lost password=hunter2"))
    cli.main()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "lost password=***" in captured.err
