"""The command line. Exit codes: 0 clean, 1 it failed, 2 bad configuration (a line for each fault on stderr)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import holdfast
from holdfast.ledger.catalog.catalog import CatalogFault, load_catalog
from holdfast.logs import configure_logging
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.audit.checks import Check
from holdfast.persistence.server.database import DatabaseAway, DatabaseTooOld, connected
from holdfast.persistence.server.embedded import DataFolderInUse, EmbeddedFault, database_url_of, temporary_embedded
from holdfast.persistence.server.migrate import MigrationRefused, migrate, pending
from holdfast.scrubbing import register_secrets
from holdfast.settings import Locations, SettingsFault, environment, load_locations, load_settings

FAILED, BAD_CONFIGURATION = 1, 2

app = typer.Typer(
    name="holdfast",
    help="A prepaid-credit service in which no credit is ever lost, doubled or spent twice.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
catalog_app = typer.Typer(no_args_is_help=True, help="Look after the catalog of models and prices.")
app.add_typer(catalog_app, name="catalog")


@app.command("serve")
def serve_command() -> None:
    """Run the service until it is told to stop."""
    with _told():
        settings = load_settings(environment())
        from holdfast.service import serve

        code = serve(settings)
    raise typer.Exit(code)


@app.command("demo")
def demo_command() -> None:
    """Run the service on its own stand-ins and walk through it once."""
    with _told():
        from holdfast.demo import main as demo

        code = demo()
    raise typer.Exit(code)


@app.command("migrate")
def migrate_command() -> None:
    """Bring the database's tables up to date."""
    with _told(), _database(load_locations(environment()), make=True) as url:
        report = migrate(url)
    done = f"applied {', '.join(report.applied)}" if report.applied else "nothing to do"
    typer.echo(f"database at revision {report.after}: {done}")


@app.command("audit")
def audit_command() -> None:
    """Check every promise about credit against the rows, one line a check."""
    with _told(), _database(load_locations(environment()), make=False) as url:
        behind = pending(url)
        if behind:
            _fail(f"The database lacks {', '.join(behind)}: run `holdfast migrate` first.", FAILED)
        with connected(url) as connection:
            checks = run_audit(connection)
    for check in checks:
        typer.echo(_line(check))
    failed = sum(not check.ok for check in checks)
    if failed:
        _fail(f"{failed} of {len(checks)} checks failed.", FAILED)


@app.command("reconcile")
def reconcile_command(
    every: Annotated[bool, typer.Option("--all", help="Look also at orders that are reconciled already.")] = False,
) -> None:
    """Compare card orders with the card provider now, one line an order that differs or could not be compared."""

    from holdfast.reconcile import NoCardProvider, reconcile

    def show(done: int, total: int, order_id: str, result: str) -> None:
        if result in ("mismatch", "error", "put_off") or done == total or done % 100 == 0:
            typer.echo(f"{done:>6}/{total}  {order_id}  {result}")

    with _told():
        settings = load_settings(environment())
        register_secrets(settings.secret_values())
        with _database(load_locations(environment()), make=False) as url:
            behind = pending(url)
            if behind:
                _fail(f"The database lacks {', '.join(behind)}: run `holdfast migrate` first.", FAILED)
            try:
                results = reconcile(settings, url, every=every, progress=show)
            except NoCardProvider:
                _fail("No card provider is configured.", BAD_CONFIGURATION)
    counted = ", ".join(f"{many} {result}" for result, many in sorted(results.items())) or "nothing to do"
    typer.echo(f"card orders looked at: {counted}")
    wrong = sum(results[result] for result in ("mismatch", "error", "put_off"))
    if wrong:
        _fail(f"{wrong} card orders are not in order or could not be compared.", FAILED)


@catalog_app.command("check")
def catalog_check_command(
    file: Annotated[
        Path | None, typer.Argument(help="A catalog file; without one, the configured catalog.")
    ] = None,
) -> None:
    """Say what is wrong with a catalog, or what is in it."""
    with _told():
        catalog = load_catalog(file or load_locations(environment()).catalog)
    for line in catalog.warnings:
        typer.echo(f"warning: {line}", err=True)
    typer.echo(
        f"catalog {catalog.version} is in order: {len(catalog.models)} models, {len(catalog.providers)} providers"
    )


@app.command("version")
def version_command() -> None:
    """Say which version this is."""
    typer.echo(holdfast.__version__)


def main() -> None:
    """The entry point of the script ``holdfast``. What commands log goes to stderr, scrubbed."""
    configure_logging("console", level="WARNING")
    app()


def _line(check: Check) -> str:
    verdict = "ok    " if check.ok else "FAILED"
    return f"{verdict} {check.counted:>10}  {check.name}" + (f": {check.detail}" if check.detail else "")


@contextlib.contextmanager
def _database(place: Locations, *, make: bool) -> Iterator[str]:
    """The URL of the configured database: named, embedded and running, or embedded and started for this command."""
    url = place.database_url or database_url_of(place.data_dir)
    if url is not None:
        yield url
        return
    if not make and not (place.data_dir / "postgres").exists():
        _fail(f"There is no database in {place.data_dir}.", BAD_CONFIGURATION)
    with temporary_embedded(place.data_dir) as url:
        yield url


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn faults with a plain cause into lines on stderr and an exit code."""
    try:
        yield
    except (SettingsFault, CatalogFault) as exc:
        _fail("\n".join(exc.lines), BAD_CONFIGURATION)
    except (DataFolderInUse, MigrationRefused, DatabaseTooOld) as exc:
        _fail(str(exc), BAD_CONFIGURATION)
    except EmbeddedFault as exc:
        _fail(str(exc), FAILED)
    except DatabaseAway as exc:
        _fail(f"The database cannot be reached: {exc.reason}", FAILED)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)
