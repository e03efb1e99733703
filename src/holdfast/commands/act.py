"""``holdfast act``: does something to all entries of a list that match, and follows how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlencode

import typer

from holdfast.commands.common import fail, report_faults, until_interrupted
from holdfast.settings.settings import environment, load_service_location
from holdfast.start.exit_codes import BAD_CONFIGURATION, GAVE_UP

T = TypeVar("T")

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
    url: Annotated[
        str | None, typer.Option(help="The service's address; by default the configured one.", show_default=False)
    ] = None,
) -> None:
    """Act on all entries of a list that match a filter; or stop, continue or show such a bulk action."""
    from holdfast.commands.service_calls import ServiceFault, call_service
    from holdfast.http.endpoints.operators.bulk import BulkActionBody, MatchesBody

    words = which or []
    is_on_one = act in ("stop", "continue", "show")
    if is_on_one and (len(words) != 1 or dry_run):
        fail(f"{act} takes the id of one bulk action.", BAD_CONFIGURATION)
    if any("=" not in each for each in words) and not is_on_one:
        fail("A filter is name=value.", BAD_CONFIGURATION)
    if not reason.strip() and not (dry_run or act == "show"):
        fail("--reason is needed: it is recorded with the action.", BAD_CONFIGURATION)
    with report_faults():
        call: Callable[..., Any] = partial(
            call_service, load_service_location(environment()), url=url, timeout_s=TIMEOUT_S
        )
        sent = urlencode([each.partition("=")[::2] for each in words]) if not is_on_one else ""
        try:
            if not is_on_one:
                matches: MatchesBody = call(
                    "/ops/api/bulk-matches", MatchesBody, query={"act": act, "filter": sent}
                )
                typer.echo(f"{matches.count} match.")
                for title, found in (("oldest", matches.oldest), ("newest", matches.newest)):
                    for each in found:
                        typer.echo(f"{title} {each.at or '':24} {' '.join(each.target)}")
                if dry_run or not matches.count:
                    return
            path = f"{BULK}/{words[0]}" if is_on_one else BULK
            body: Mapping[str, str] | None = (
                {"reason": reason} if is_on_one else {"act": act, "filter": sent, "reason": reason}
            )
            begun: BulkActionBody = (
                call(path, BulkActionBody)
                if act == "show"
                else call(f"{path}/{act}" if is_on_one else path, BulkActionBody, body=body)
            )
            typer.echo(f"{begun.action_id} {begun.act} {begun.filter}")
            with until_interrupted():
                while begun.state == "running" and wait:
                    time.sleep(POLL_S)
                    begun = call(f"{BULK}/{begun.action_id}", BulkActionBody)
                    typer.echo(f"{begun.done + begun.refused} of {begun.total}", err=True)
        except ServiceFault as fault:
            fail(str(fault), GAVE_UP)
        typer.echo(f"{begun.state}: {begun.done} of {begun.total} done, {begun.refused} refused")
        for line in begun.exceptions:
            typer.echo(line)
