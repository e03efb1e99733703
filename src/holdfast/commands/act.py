"""``holdfast act``: does something to all entries of a list that match, and follows how far it is."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Final
from urllib.parse import urlencode

import typer

from holdfast.commands.common import ServiceUrl, ask_service, fail, until_interrupted
from holdfast.start.exit_codes import BAD_CONFIGURATION

TIMEOUT_S: Final = 90.0
POLL_S: Final = 1.0
BULK: Final = "/ops/api/bulk-actions"


def act_command(
    act: Annotated[
        str, typer.Argument(help="What is done to each, such as retry_webhook; or stop, continue or show.")
    ],
    which: Annotated[
        list[str] | None,
        typer.Argument(help="The filters, such as status=given_up; or the id of a bulk action (act_…)."),
    ] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what matches.")] = False,
    reason: Annotated[str, typer.Option(help="Why; it is recorded. Needed, but with --dry-run and show.")] = "",
    wait: Annotated[bool, typer.Option(help="Follow it to its end. It goes on in any case.")] = True,
    url: ServiceUrl = None,
) -> None:
    """Act on all entries of a list that match a filter; or stop, continue or show such a bulk action."""
    from holdfast.http.endpoints.operators.bulk import BulkActionBody, MatchesBody

    words = which or []
    if is_on_one := act in ("stop", "continue", "show"):
        if len(words) != 1 or dry_run:
            fail(f"{act} takes the id of one bulk action.", BAD_CONFIGURATION)
    elif any("=" not in each for each in words):
        fail("A filter is name=value.", BAD_CONFIGURATION)
    if not reason.strip() and not (dry_run or act == "show"):
        fail("--reason is needed: it is recorded with the action.", BAD_CONFIGURATION)
    ask = partial(ask_service, url=url, timeout_s=TIMEOUT_S)
    if is_on_one:
        one = f"{BULK}/{words[0]}"
        found = (
            ask(one, BulkActionBody)
            if act == "show"
            else ask(f"{one}/{act}", BulkActionBody, body={"reason": reason})
        )
    else:
        given = {"act": act, "filter": urlencode([each.partition("=")[::2] for each in words])}
        matches = ask("/ops/api/bulk-matches", MatchesBody, query=given)
        typer.echo(f"{matches.count} match.")
        _tell_unreachable(matches.unreachable)
        for title, entries in (("oldest", matches.oldest), ("newest", matches.newest)):
            for each in entries:
                typer.echo(f"{title} {each.at or '':24} {' '.join(each.target)}")
        if dry_run or not matches.count:
            return
        found = ask(BULK, BulkActionBody, body={**given, "reason": reason})
    typer.echo(f"{found.action_id} {found.act} {found.filter}")
    with until_interrupted():
        while found.state == "running" and wait:
            time.sleep(POLL_S)
            found = ask(f"{BULK}/{found.action_id}", BulkActionBody)
            typer.echo(f"{found.done + found.refused} of {found.total}", err=True)
    typer.echo(f"{found.state}: {found.done} of {found.total} done, {found.refused} refused")
    for line in found.exceptions:
        typer.echo(line)
    _tell_unreachable(found.unreachable)


def _tell_unreachable(unreachable: list[str]) -> None:
    if unreachable:
        typer.echo(f"Without the actors of processes that did not answer: {', '.join(unreachable)}", err=True)
