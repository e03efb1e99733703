"""``holdfast log-level``: raises the level of the log for a subject and a time, and lists what is raised."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.commands.common import ServiceUrl, ask_service, fail
from holdfast.start.exit_codes import BAD_CONFIGURATION


def log_level_command(
    subject: Annotated[
        str | None,
        typer.Argument(help="A module such as holdfast.persistence, a kind of actor, an account, or a path."),
    ] = None,
    *,
    for_s: Annotated[float, typer.Option("--for", min=0, max=3600, help="For so many seconds; 0 ends it.")] = 600.0,
    lines: Annotated[
        int, typer.Option(min=1, max=1000, help="In each process at most so many lines a second.")
    ] = 100,
    member: Annotated[
        str | None, typer.Option("--process", help="Only in this process (proc_…); by default in all.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; it is recorded. Needed with a subject.")] = "",
    url: ServiceUrl = None,
) -> None:
    """Write a subject's lines at debug for a time; without a subject list what is raised in the running service."""
    from holdfast.http.endpoints.operators.log_levels import LogLevels

    body: dict[str, object] | None = None
    if subject is not None:
        if not reason.strip():
            fail("--reason is needed: it is recorded with the action.", BAD_CONFIGURATION)
        body = {"for_s": for_s, "lines_per_s": lines, "member_id": member, "subject": subject, "reason": reason}
    found = ask_service("/ops/api/log-levels", LogLevels, url=url, body=body)
    for each in found.data:
        typer.echo(
            f"{each.member_id} {each.subject} until {each.ends_at}, {each.logged} lines, {each.dropped} dropped: "
            f"{each.reason}"
        )
    if not found.data:
        typer.echo("No level is raised.")
    if found.unreachable:
        typer.echo(f"Processes that did not answer: {', '.join(found.unreachable)}", err=True)
