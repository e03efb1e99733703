"""What commands share: the database, and expected faults as a line and an exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Annotated, Final, NoReturn, TypeAlias, TypeVar

import typer

from holdfast.settings.secret_strength import CannotEstimate
from holdfast.settings.settings import Locations, SettingsFault, environment, load_service_location
from holdfast.start.exit_codes import BAD_CONFIGURATION, GAVE_UP

T = TypeVar("T")

REPEATED_AFTER_S: Final = 0.5
ServiceUrl: TypeAlias = Annotated[
    str | None, typer.Option(help="The service's address; by default the configured one.", show_default=False)
]


@contextlib.contextmanager
def database(locations: Locations, *, create: bool) -> Iterator[str]:
    """Return the URL of the configured database; an embedded one that does not run is started for this command."""
    from holdfast.persistence.server.embedded import database_url_of, temporary_embedded

    url = locations.database_url or database_url_of(locations.data_dir)
    if url is not None:
        yield url
        return
    if not create and not (locations.data_dir / "postgres").exists():
        fail(f"There is no database in {locations.data_dir}.", BAD_CONFIGURATION)
    with temporary_embedded(locations.data_dir) as url:
        yield url


def refuse_old_tables(url: str) -> None:
    """Exit if the database has not been migrated to this release."""
    from holdfast.persistence.server.migrate import pending

    missing = pending(url)
    if missing:
        fail(f"The database lacks {', '.join(missing)}: run `holdfast migrate` first.", GAVE_UP)


@contextlib.contextmanager
def report_faults() -> Iterator[None]:
    """Turn expected faults into lines on stderr and an exit code."""
    try:
        yield
    except SettingsFault as exc:
        fail("\n".join(exc.lines), BAD_CONFIGURATION)
    except typer.Exit:
        raise
    except Exception as exc:
        _report(exc)
        raise


def _report(fault: Exception) -> None:
    """Exit with the line and the code of an expected fault; return for any other."""
    from holdfast.ledger.catalog.catalog import CatalogFault
    from holdfast.persistence.server.database_faults import DatabaseAway, DatabaseTooOld
    from holdfast.persistence.server.migrate import MigrationBlocked, MigrationRefused
    from holdfast.persistence.server.postmaster import EmbeddedFault, EmbeddedMissing
    from holdfast.persistence.server.server_folders import DataFolderInUse
    from holdfast.sockets.listening import CannotListen
    from holdfast.telemetry.reports.causes import CannotServe

    match fault:
        case CatalogFault():
            fail("\n".join(fault.lines), BAD_CONFIGURATION)
        case CannotListen() | DataFolderInUse() | EmbeddedMissing() | MigrationRefused() | DatabaseTooOld():
            fail(str(fault), BAD_CONFIGURATION)
        case EmbeddedFault() | MigrationBlocked() | CannotServe() | CannotEstimate():
            fail(str(fault), GAVE_UP)
        case DatabaseAway():
            fail(f"The database cannot be reached: {fault.reason}", GAVE_UP)


def ask_service(
    path: str,
    reply: type[T],
    *,
    url: str | None,
    timeout_s: float = 30.0,
    query: Mapping[str, str] | None = None,
    body: Mapping[str, object] | None = None,
) -> T:
    """Read ``path`` of the configured service, or send it a ``body``. Exits with a line if it does not do so."""
    from holdfast.commands.service_calls import ServiceFault, call_service

    with report_faults():
        location = load_service_location(environment())
        try:
            return call_service(location, path, reply, url=url, timeout_s=timeout_s, query=query, body=body)
        except ServiceFault as fault:
            fail(str(fault), GAVE_UP)


@contextlib.contextmanager
def quiet_ends() -> Iterator[None]:
    """Let the user, or a program that reads no more of the output, end a command."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit from None
    except BrokenPipeError:
        # Python flushes the output once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """Run what goes on until the user ends it, and end quietly then.

    The interpreter drops an exception that is raised while it runs a destructor, so an interrupt is repeated until
    it has ended what is inside. A library that is interrupted while it closes may raise another exception for it.
    """
    is_inside, is_interrupted = True, False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if is_inside:
            is_interrupted = True
            signal.setitimer(signal.ITIMER_REAL, REPEATED_AFTER_S)
            raise KeyboardInterrupt

    # The alarm first, which an interrupt sets. What is ignored, as in a shell's background job, stays so.
    numbers = (signal.SIGALRM, signal.SIGTERM, signal.SIGINT)
    before = {
        each: handler for each in numbers if (handler := signal.getsignal(each)) not in (signal.SIG_IGN, None)
    }
    try:
        for number in before:
            signal.signal(number, interrupt)
        yield
    except BaseException:
        if not is_interrupted:
            raise
    finally:
        is_inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def fail(message: str, code: int) -> NoReturn:
    """Print a line on stderr and exit."""
    typer.echo(message, err=True)
    raise typer.Exit(code)
