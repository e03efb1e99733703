"""``holdfast override``: sets slots, pauses and limits of creates for a time, and lists what is set."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import quote

import typer

from holdfast.commands.common import ServiceUrl, ask_service, fail
from holdfast.start.exit_codes import BAD_CONFIGURATION

What = Literal["slots", "pause-provider", "pause-model", "creates"]
_KINDS: Final = {
    "slots": ("provider_slots", "providers/{}/slots", "slots"),
    "pause-provider": ("provider_pause", "providers/{}/pause", "new_tasks"),
    "pause-model": ("model_pause", "models/{}/pause", "new_tasks"),
    "creates": ("account_creates", "accounts/{}/creates", "per_s"),
}
"""Of each: the kind of override, the path of its action, and the field of its value."""


def override_command(
    what: Annotated[What | None, typer.Argument(help="What is set; without it all that is set is listed.")] = None,
    subject: Annotated[str | None, typer.Argument(help="The provider, the model or the account.")] = None,
    value: Annotated[
        str | None,
        typer.Argument(help="How many slots, or creates a second; of a pause: wait or refuse, for new tasks."),
    ] = None,
    *,
    for_s: Annotated[int, typer.Option("--for", min=0, help="For so many seconds; 0 ends it.")] = 3_600,
    note: Annotated[str, typer.Option(help="Of a pause: why, for customers.")] = "",
    reason: Annotated[str, typer.Option(help="Why; it is recorded. Needed to set or end anything.")] = "",
    url: ServiceUrl = None,
) -> None:
    """Set for a time a provider's slots, a pause of a provider or model, or how many tasks an account creates."""
    from holdfast.http.endpoints.operators.overrides import OverrideList

    path, body = "/ops/api/overrides", None
    if what is not None:
        path, body = _action(what, subject, value, for_s=for_s, note=note, reason=reason)
    found = ask_service(path, OverrideList, url=url, body=body)
    for each in found.data:
        value = each.new_tasks if each.number is None else f"{each.number:g}"
        typer.echo(f"{each.kind} {each.subject} {value} until {each.ends_at}, by {each.operator}: {each.reason}")
    if not found.data:
        typer.echo("Nothing is set.")
    if found.unreachable:
        typer.echo(f"Processes that find it within a second: {', '.join(found.unreachable)}", err=True)


def _action(
    what: What, subject: str | None, value: str | None, *, for_s: int, note: str, reason: str
) -> tuple[str, dict[str, object]]:
    """Return the path and the body of the action. Exits if something is lacking."""
    kind, path, field = _KINDS[what]
    if not subject or not reason.strip():
        fail("A subject and --reason are needed: they are recorded with the action.", BAD_CONFIGURATION)
    if not for_s:
        return "/ops/api/overrides/end", {"kind": kind, "subject": subject, "reason": reason}
    given: object = value
    if field != "new_tasks":
        try:
            given = int(value or "") if field == "slots" else float(value or "")
        except ValueError:
            fail(f"{what} needs a number.", BAD_CONFIGURATION)
    elif value not in ("wait", "refuse"):
        fail(f"{what} needs wait or refuse.", BAD_CONFIGURATION)
    body = {field: given, "for_s": for_s, "reason": reason} | ({"note": note} if field == "new_tasks" else {})
    return f"/ops/api/{path.format(quote(subject, safe=''))}", body
