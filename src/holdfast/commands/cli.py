"""The command line. Exit codes: 0 success, 1 failure, 2 bad configuration (one line per fault on stderr).

Commands import what they need: the parent of worker processes is started here, and has no application code.
"""

from __future__ import annotations

import signal
import sys
from contextlib import nullcontext
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from typer.core import TyperGroup

import holdfast
from holdfast.commands.act import act_command
from holdfast.commands.cells import audit_cells_command, move_account_command
from holdfast.commands.common import (
    ServiceUrl,
    database,
    fail,
    quiet_ends,
    refuse_old_tables,
    report_faults,
    until_interrupted,
)
from holdfast.commands.log_level import log_level_command
from holdfast.commands.overrides import override_command
from holdfast.commands.places import places_command
from holdfast.settings.checks import EMULATORS, INSTALL_EMULATORS, has_emulators
from holdfast.settings.settings import (
    environment,
    load_locations,
    load_service_location,
    load_settings,
    override,
    use_env_file,
)
from holdfast.start.exit_codes import BAD_CONFIGURATION, GAVE_UP
from holdfast.telemetry.logs import configure_logging
from holdfast.telemetry.reports.report import Level, ReportFilter, ReportKind
from holdfast.telemetry.scrubbing import register_secrets

ENV_FILE: Final = "--env-file"


class Program(TyperGroup):
    """The program, whose option ``--env-file`` may also follow the command; the last one counts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the option and its value to the front."""
        front: list[str] = []
        rest = list(args)
        end = rest.index("--") if "--" in rest else len(rest)
        if rest[end - 1 : end] == [ENV_FILE]:
            # Without a value, which is a fault whatever else is given.
            return super().parse_args(ctx, [ENV_FILE])
        for index in reversed(range(end)):
            if rest[index] == ENV_FILE or rest[index].startswith(f"{ENV_FILE}="):
                words = 1 + (rest[index] == ENV_FILE)
                front[:0] = rest[index : index + words]
                del rest[index : index + words]
        return super().parse_args(ctx, [*front, *rest])


app = typer.Typer(
    name="holdfast",
    cls=Program,
    help="A prepaid-credit service in which no credit is ever lost, doubled or spent twice. Settings are "
    "environment variables that begin with HOLDFAST_; docs/settings.md lists them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
CHECK_LATE_S = 60.0
"""How much longer than its job a provider's check may take."""

RUN, CHECK, WATCH = "Run the service", "Check what is stored and configured", "Watch a running service"
catalog_app = typer.Typer(no_args_is_help=True, help="Check and extend the catalog of models and prices.")
app.add_typer(catalog_app, name="catalog", rich_help_panel=CHECK)
provider_app = typer.Typer(no_args_is_help=True, help="Check media providers.")
app.add_typer(provider_app, name="provider", rich_help_panel=CHECK)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(holdfast.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    env_file: Annotated[
        Path | None,
        typer.Option(
            ENV_FILE,
            help="A file with settings, which systemd could read as well; variables that are set take precedence.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Take the options of the program itself."""
    del version
    if env_file is not None:
        with report_faults():
            for line in use_env_file(env_file):
                typer.echo(f"warning: {line}", err=True)


@app.command("serve", rich_help_panel=RUN)
def serve_command(
    processes: Annotated[
        int | None,
        typer.Option(help="Worker processes below a parent; 0: one process without a parent.", show_default=False),
    ] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0: any.", show_default=False)] = None,
    log_level: Annotated[
        str | None, typer.Option(help="The least level of log lines: debug, info, warning, …", show_default=False)
    ] = None,
) -> None:
    """Run the service until it is stopped.

    Options take precedence over the settings of their names.
    """
    # Before and after the time in which these are handled, as while the database is migrated, they would end it.
    for number in (signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    given = {"PROCESSES": processes, "HOST": host, "PORT": port, "LOG_LEVEL": log_level}
    with report_faults():
        override(environment(), {name: str(value) for name, value in given.items() if value is not None})
        settings = load_settings(environment())
        if settings.processes:
            from holdfast.start.parent.parent import serve
        else:
            from holdfast.start.single_process import serve
        code = serve(settings)
    raise typer.Exit(code)


@app.command("demo", rich_help_panel=RUN)
def demo_command() -> None:
    """Run the service with emulated providers and walk through it once."""
    with report_faults():
        if not has_emulators():
            fail(f"The demo uses the emulators: {INSTALL_EMULATORS}", BAD_CONFIGURATION)
        [demo] = entry_points(group=EMULATORS, name="demo")
        code = demo.load()()
    raise typer.Exit(code)


@app.command("migrate", rich_help_panel=RUN)
def migrate_command() -> None:
    """Migrate the database's tables."""
    from holdfast.persistence.server.migrate import migrate

    with report_faults(), database(load_locations(environment()), create=True) as url:
        report = migrate(url)
    done = f"applied {', '.join(report.applied)}" if report.applied else "nothing to do"
    typer.echo(f"database at revision {report.after}: {done}")


@app.command("init", rich_help_panel=RUN)
def init_command(
    target: Annotated[
        Literal["compose", "systemd"],
        typer.Argument(help="What runs the service: deploy/compose.yaml, or the units in deploy/systemd."),
    ],
    path: Annotated[
        Path | None,
        typer.Argument(
            help="For compose the folder of compose.yaml, by default this one; for systemd the file.",
            show_default=False,
        ),
    ] = None,
    *,
    purpose: Annotated[
        Literal["production", "sandbox"] | None,
        typer.Option("--for", help="Whether customers pay, or it is only tried out.", show_default=False),
    ] = None,
    public_url: Annotated[str | None, typer.Option(help="The public address.", show_default=False)] = None,
    smtp_url: Annotated[str | None, typer.Option(help="The mail server.", show_default=False)] = None,
    mail_from: Annotated[str | None, typer.Option(help="The sender of mail.", show_default=False)] = None,
    operators: Annotated[str | None, typer.Option(help="Operators' e-mail addresses.", show_default=False)] = None,
) -> None:
    """Write the settings and fresh secrets of a new installation; nothing that exists is overwritten.

    What no option says is asked on a terminal.
    """
    from holdfast.commands import init

    may_ask = sys.stdin.isatty()
    given = {"PUBLIC_URL": public_url, "SMTP_URL": smtp_url, "MAIL_FROM": mail_from, "OPERATORS": operators}
    with report_faults():
        if purpose is None:
            if not may_ask:
                fail("--for is missing: production or sandbox", BAD_CONFIGURATION)
            purpose = init.ask_purpose()
        answers = init.answers_of(purpose, given, may_ask=may_ask)
        secret = init.new_secrets(target, answers)
        text = init.env_file(target, purpose, init.settings_of(target, purpose, answers, secret))
        where = path or (Path() if target == "compose" else Path("/etc/holdfast.env"))
        try:
            written = init.write(target, where, text, secret)
        except init.CannotWrite as fault:
            fail(str(fault), BAD_CONFIGURATION)
    for each in written:
        typer.echo(f"wrote {each}")


@app.command("audit", rich_help_panel=CHECK)
def audit_command(
    recent: Annotated[
        bool, typer.Option("--recent", help="Read history only from each account's checkpoint.")
    ] = False,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Write a checkpoint of each account without a difference.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Check again and again until interrupted.")] = False,
) -> None:
    """Check the invariants of credit against the rows, account by account.

    Prints a line for each difference and each rule, and exits with 1 if there is a difference.
    """
    from holdfast.commands.audit_watch import AuditWatch, ProgressLine
    from holdfast.persistence.audit.audit import RULE_NAMES

    ends = quiet_ends() if watch else nullcontext()
    with ends, report_faults(), database(load_locations(environment()), create=False) as url:
        refuse_old_tables(url)
        audit = AuditWatch(url, ProgressLine(sys.stdout), recent=recent, checkpoint=checkpoint)
        if watch:
            with until_interrupted():
                audit.run()
            typer.echo()
        else:
            audit.run_pass()
            broken = {each.rule for each in audit.found}
            for name in RULE_NAMES:
                typer.echo(f"{'FAILED' if name in broken else 'ok    '} {name}")
    if audit.has_found:
        raise typer.Exit(GAVE_UP)


app.command("audit-cells", rich_help_panel=CHECK)(audit_cells_command)


@app.command("clock", rich_help_panel=CHECK)
def clock_command(
    reset: Annotated[
        bool, typer.Option("--reset", help="Set service time to the database's clock. No process may run.")
    ] = False,
) -> None:
    """Show service time, the database's clock and this machine's."""
    from holdfast.ledger.values import format_time
    from holdfast.persistence.operators.clocks import read_clocks, reset_service_time
    from holdfast.persistence.server.connections import connected

    with report_faults(), database(load_locations(environment()), create=False) as url:
        refuse_old_tables(url)
        with connected(url) as rows:
            if reset:
                match reset_service_time(rows):
                    case "running":
                        fail("A process serves this database: stop all of them first.", GAVE_UP)
                    case "clocks differ":
                        fail("The database's clock and this machine's differ: set them right first.", GAVE_UP)
                rows.commit()
            clocks = read_clocks(rows)
    typer.echo(f"service time          {'not begun' if clocks.service is None else format_time(clocks.service)}")
    typer.echo(f"the database's clock  {format_time(clocks.database)}")
    typer.echo(f"this machine's clock  {format_time(clocks.machine)}")


@app.command("reconcile", rich_help_panel=CHECK)
def reconcile_command(
    every: Annotated[bool, typer.Option("--all", help="Include orders that are already reconciled.")] = False,
) -> None:
    """Reconcile card orders with the card provider now; one line per order that differs or failed."""
    from holdfast.commands.reconcile import NoCardProvider, reconcile

    def show(done: int, total: int, order_id: str, result: str) -> None:
        if result in ("mismatch", "error", "postponed") or done == total or done % 100 == 0:
            typer.echo(f"{done:>6}/{total}  {order_id}  {result}")

    with report_faults():
        settings = load_settings(environment())
        register_secrets(settings.secret_values())
        with database(load_locations(environment()), create=False) as url:
            refuse_old_tables(url)
            try:
                results = reconcile(settings, url, every=every, progress=show)
            except NoCardProvider:
                fail("No card provider is configured.", BAD_CONFIGURATION)
    counted = ", ".join(f"{many} {result}" for result, many in sorted(results.items())) or "nothing to do"
    typer.echo(f"card orders reconciled: {counted}")
    wrong = sum(results[result] for result in ("mismatch", "error", "postponed"))
    if wrong:
        differ = "1 card order differs" if wrong == 1 else f"{wrong} card orders differ"
        fail(f"{differ} or could not be compared.", GAVE_UP)


@app.command("reports", rich_help_panel=WATCH)
def reports_command(
    *,
    kind: Annotated[ReportKind | None, typer.Option(help="Only this kind.", show_default=False)] = None,
    level: Annotated[Level, typer.Option(help="This level and louder.")] = "info",
    path: Annotated[str | None, typer.Option(help="This child of the tree, and below.", show_default=False)] = None,
    key: Annotated[str | None, typer.Option(help="Only on this actor.", show_default=False)] = None,
    account: Annotated[str | None, typer.Option(help="Only on this account.", show_default=False)] = None,
    task: Annotated[str | None, typer.Option(help="Only on this task.", show_default=False)] = None,
    provider: Annotated[str | None, typer.Option(help="Only on this provider.", show_default=False)] = None,
    member: Annotated[str | None, typer.Option(help="Only of this process.", show_default=False)] = None,
    trace: Annotated[
        str | None, typer.Option(help="Only on this request: its trace, or X-Request-Id.", show_default=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="As long ago as 15m, 2h or 7d, or an RFC 3339 time.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most the newest so many.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new ones until interrupted.")] = False,
    form: Annotated[
        Literal["console", "json"], typer.Option("--format", help="Lines for people, or of JSON.")
    ] = "console",
) -> None:
    """Print the reports of all processes, the newest last."""
    trace_id = None if trace is None else trace.removeprefix("req_")
    wanted = ReportFilter(
        kind=kind,
        level=level,
        path=path,
        key=key,
        account_id=account,
        task_id=task,
        provider=provider,
        member_id=member,
        trace_id=trace_id,
    )
    from holdfast.commands.reports import print_reports

    with report_faults(), quiet_ends():
        print_reports(wanted, since, limit=limit, follow=follow, form=form)


app.command("move-account", rich_help_panel=RUN)(move_account_command)
app.command("act", rich_help_panel=WATCH)(act_command)
app.command("log-level", rich_help_panel=WATCH)(log_level_command)
app.command("override", rich_help_panel=WATCH)(override_command)


@app.command("follow", rich_help_panel=WATCH)
def follow_command(
    sought: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="An X-Request-Id or trace; a task, order, account, event, webhook, receipt, API key, process, job "
            "of a provider, payment, charge, refund or dispute; or an e-mail address.",
        ),
    ],
    *,
    live: Annotated[bool, typer.Option("--live", help="Go on with what is new until interrupted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Lines of JSON.")] = False,
    since: Annotated[
        str | None, typer.Option(help="As long ago as 15m, 2h or 7d, or an RFC 3339 time.", show_default=False)
    ] = None,
    url: ServiceUrl = None,
) -> None:
    """Print all that happened to one thing, the newest last: rows, reports, actions, log lines of all processes.

    An asterisk marks what has an id of it; the rest is of the same account. The running service is asked.
    """
    from holdfast.commands.follow import print_followed

    with report_faults(), quiet_ends():
        print_followed(sought, since, live=live, as_json=as_json, url=url)


@catalog_app.command("check")
def catalog_check_command(
    file: Annotated[
        Path | None, typer.Argument(help="A catalog file; without one, the configured catalog.")
    ] = None,
) -> None:
    """Check a catalog file: list its faults, or count its models and providers."""
    from holdfast.wiring.provider_registry import check_studio, read_catalog

    with report_faults():
        catalog = read_catalog(file or load_locations(environment()).catalog)
        check_studio(catalog)
    for line in catalog.warnings:
        typer.echo(f"warning: {line}", err=True)
    for model in catalog.models.values():
        if model.undescribed:
            typer.echo(f"warning: model {model.id}: not described: {', '.join(model.undescribed)}", err=True)
    typer.echo(
        f"catalog {catalog.version} is valid; models: {len(catalog.models)}, providers: {len(catalog.providers)}"
    )


@catalog_app.command("probe")
def catalog_probe_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Models; without any, all of the configured catalog."),
    ] = None,
    *,
    wait_s: Annotated[float, typer.Option("--wait", min=1, max=120, help="Seconds for each job to end.")] = 120.0,
    yes: Annotated[bool, typer.Option("--yes", help="Run jobs even if their provider charges for them.")] = False,
    url: ServiceUrl = None,
) -> None:
    """Run the example of each model once at its provider, for no account; one line per model.

    The running service takes them, as with `holdfast provider check`, which shows the steps of one job.

    Exits with 1 if one fails.
    """
    from holdfast.commands.provider_check import probe
    from holdfast.commands.service_calls import ServiceFault
    from holdfast.wiring.provider_registry import read_catalog

    has_failed = False
    with report_faults():
        location = load_service_location(environment())
        known = read_catalog(location.catalog).models
        unknown = [name for name in names or () if name not in known]
        if unknown:
            fail(f"Not in the catalog: {', '.join(unknown)}", BAD_CONFIGURATION)
        wanted = [known[name] for name in names or known]
        try:
            for failed, line in probe(
                location, wanted, accept_cost=yes, wait_s=wait_s, url=url, timeout_s=wait_s + CHECK_LATE_S
            ):
                typer.echo(line)
                has_failed |= failed
        except ServiceFault as fault:
            fail(str(fault), GAVE_UP)
    if has_failed:
        raise typer.Exit(GAVE_UP)


@catalog_app.command("import-cog")
def catalog_import_cog_command(
    url: Annotated[str, typer.Argument(metavar="URL", help="The address of a running Cog container.")],
    *,
    provider: Annotated[
        str | None,
        typer.Option(help="The provider's name; by default of the address.", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model's id; by default PROVIDER/model-1.", show_default=False)
    ] = None,
    modality: Annotated[Literal["image", "video", "audio"], typer.Option(help="What the model makes.")] = "image",
    to: Annotated[
        Path | None,
        typer.Option(
            help="Add the entry to this catalog file, its schema to schemas/ beside it; by default, print both.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write the catalog entry of a Cog container's model, from the schema that the container publishes.

    The schema has no price: the entry is disabled until you have set one and removed its status.
    """
    from holdfast.commands.import_cog import (
        ImportFault,
        add_to_catalog,
        check_entry,
        entry_text,
        import_model,
        read_schemas,
    )

    with report_faults():
        try:
            imported = import_model(url, read_schemas(url), provider=provider, model=model, modality=modality)
            if to is None:
                text = entry_text(imported)
                check_entry(text)
                typer.echo(text, nl=False)
            else:
                schema = add_to_catalog(to, imported)
                typer.echo(f"{imported.model_table['id']} is in {to}, its input schema in {schema}")
        except ImportFault as fault:
            fail(str(fault), GAVE_UP)


@provider_app.command("check")
def provider_check_command(
    name: Annotated[str, typer.Argument(help="The provider's name in the catalog.")],
    *,
    model: Annotated[str | None, typer.Option(help="The model to run; by default the cheapest.")] = None,
    job_input: Annotated[str | None, typer.Option("--input", help="The model's input, as JSON.")] = None,
    wait_s: Annotated[float, typer.Option("--wait", min=1, max=120, help="Seconds for the job to end.")] = 30.0,
    yes: Annotated[bool, typer.Option("--yes", help="Run the job even if the provider charges for it.")] = False,
    url: ServiceUrl = None,
) -> None:
    """Run one real job at a provider, for no account, and show each step.

    These are the connection, the submission, the callback, the poll and the download of the outputs.

    The running service takes them, so the callback comes to its public address.

    Exits with 1 if a step fails.
    """
    import json

    from holdfast.commands.provider_check import check_lines, check_provider
    from holdfast.commands.service_calls import ServiceFault

    try:
        given = None if job_input is None else json.loads(job_input)
    except ValueError as fault:
        fail(f"--input is not JSON: {fault}", BAD_CONFIGURATION)
    body = {"wait_s": wait_s, "accept_cost": yes, "model": model, "input": given}
    wanted = {name: value for name, value in body.items() if value is not None}
    with report_faults():
        location = load_service_location(environment())
        try:
            found = check_provider(location, name, wanted, url=url, timeout_s=wait_s + CHECK_LATE_S)
        except ServiceFault as fault:
            fail(str(fault), GAVE_UP)
    for line in check_lines(found):
        typer.echo(line)
    if not found.ok:
        raise typer.Exit(GAVE_UP)


app.command("places", rich_help_panel=RUN)(places_command)


@app.command("verify-statement", rich_help_panel=CHECK)
def verify_statement_command(
    file: Annotated[Path, typer.Argument(help="The signed statement.")],
    newer: Annotated[
        Path | None,
        typer.Argument(help="A newer one, which must have its operations or go on from them.", show_default=False),
    ] = None,
    *,
    keys: Annotated[Path, typer.Option(help="The service's public keys, holdfast-statement-keys.json.")],
) -> None:
    """Check a signed statement of an account, and name what was altered in it.

    It runs verify_statement.py, which customers have too. Neither the service nor its settings are used.
    """
    from holdfast.ledger.credit.verify_statement import run

    raise typer.Exit(run([str(each) for each in (file, newer) if each is not None], str(keys)))


@app.command("version", hidden=True)
def version_command() -> None:
    """Print the version, as --version does."""
    typer.echo(holdfast.__version__)


def main() -> None:
    """The entry point of the script ``holdfast``. Commands log to stderr, scrubbed of secrets."""
    configure_logging("console", level="WARNING")
    app()
