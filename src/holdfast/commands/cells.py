"""The commands between cells: ``move-account`` and ``audit-cells``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from holdfast.commands.common import database, fail, refuse_old_tables, report_faults
from holdfast.settings.settings import environment, load_locations, load_settings, read_env_file
from holdfast.start.exit_codes import BAD_CONFIGURATION, GAVE_UP
from holdfast.telemetry.scrubbing import register_secrets


def move_account_command(
    account_id: Annotated[str, typer.Argument(help="The account.")],
    *,
    to: Annotated[Path, typer.Option(help="The other cell's file of settings.")],
    undo: Annotated[
        bool, typer.Option("--undo", help="Open the account again here, if it has not arrived.")
    ] = False,
) -> None:
    """Move an account to another cell, while both serve.

    It is closed for as long as its rows take, usually for seconds. If the command was ended, run it again.
    """
    from holdfast.commands.move_account import EndOfMove, faults_of_pair, move_account
    from holdfast.persistence.operators.moves import MoveRefused

    with report_faults(), ExitStack() as stack:
        theirs = read_env_file(to)
        source, target = load_settings(environment()), load_settings(theirs)
        register_secrets((*source.secret_values(), *target.secret_values()))
        faults = faults_of_pair(account_id, source, target)
        if faults:
            fail("\n".join(faults), BAD_CONFIGURATION)
        urls = [
            stack.enter_context(database(load_locations(each), create=False)) for each in (environment(), theirs)
        ]
        for url in urls:
            refuse_old_tables(url)
        here, there = EndOfMove(source, urls[0]), EndOfMove(target, urls[1])
        try:
            move_account(account_id, here, there, undoing=undo, say=typer.echo)
        except MoveRefused as fault:
            fail(str(fault), GAVE_UP)


def audit_cells_command(
    others: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The settings of each other cell.")],
) -> None:
    """Check what no cell can check alone: no account is in two, and what moved between cells cancels.

    It is besides `holdfast audit` in each cell. Exits with 1 if there is a difference.
    """
    from holdfast.persistence.audit.moves import differences_between
    from holdfast.persistence.server.connections import connected

    with report_faults(), ExitStack() as stack:
        cells = {}
        settings = {"this cell": environment(), **{str(each): read_env_file(each) for each in others}}
        for name, given in settings.items():
            url = stack.enter_context(database(load_locations(given), create=False))
            refuse_old_tables(url)
            cells[name] = stack.enter_context(connected(url))
        found = list(differences_between(cells))
    for line in found:
        typer.echo(f"FAILED {line}")
    if found:
        raise typer.Exit(GAVE_UP)
    typer.echo(f"{len(cells)} cells agree")
