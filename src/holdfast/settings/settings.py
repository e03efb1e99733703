"""Settings: one frozen, validated object, read from environment variables.

Every variable is ``HOLDFAST_`` and a field's alias, or that and ``_FILE``, which names a file with the value; a
blank value counts as unset. All faults are listed at once.
Development generates missing secrets and stores them in ``DATA_DIR/secrets``, one file each; production refuses
to start without its secrets, or with weak ones.
"""

from __future__ import annotations

import contextlib
import difflib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar, get_type_hints
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Meta

from holdfast.ledger.cells import Cells
from holdfast.ledger.values import PLACES
from holdfast.settings.checks import (
    MEMBER_TLS,
    OWN_SECRETS,
    Fault,
    find_cell_faults,
    find_faults,
    find_location_faults,
)
from holdfast.settings.env_file import EnvFile, EnvFileFault, parse_env_file
from holdfast.settings.values import (
    AbsolutePath,
    BaseUrl,
    CellsFile,
    Count,
    DatabaseUrl,
    Emails,
    ExistingFile,
    HostAndPort,
    Lifetime,
    LogLevel,
    MicroCredits,
    NumberPrefix,
    Port,
    PrivateFile,
    Proxies,
    ProxyHeader,
    Seconds,
    Secret,
    Share,
    SmtpUrl,
    TextList,
    is_open_to_all,
    read_file_value,
    read_value,
)

PREFIX = "HOLDFAST_"
IN_FILE = "_FILE"
PRODUCTION_DEFAULTS = {
    "LOG_FORMAT": "json",
    "PROCESSES": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1),
    "SANDBOX_ENABLED": "false",
    "TASK_CREATES_PER_ACCOUNT_S": "1000",
    "WEBHOOK_LOCAL_ALLOWED": "false",
}
"""The defaults in production that differ from those of the fields."""
S = TypeVar("S", bound="Locations")


class SettingsFault(Exception):
    """The environment variables are not valid settings. ``lines`` has one line for each fault."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Locations(msgspec.Struct, frozen=True, kw_only=True, rename="upper"):
    """The locations of the database, the files and the catalog, which are all that the other commands need.

    ``cells``: the list of all cells, ``cell``: the number of this one; without them the service has one database.
    """

    data_dir: AbsolutePath = msgspec.field(default_factory=lambda: Path("var").absolute())
    database_url: DatabaseUrl = None
    catalog: ExistingFile | None = None
    cells: CellsFile = ()
    cell: Count | None = None

    def __repr__(self) -> str:
        """Some values are secrets, so none is shown."""
        return f"<{type(self).__name__}>"

    @property
    def places(self) -> Sequence[int]:
        """The places that this service has: those of its cell, or all."""
        if self.cell is None:
            return range(PLACES)
        return [place for places in Cells(self.cell, self.cells).own.places for place in places]


class ServiceLocation(Locations, frozen=True, kw_only=True, rename="upper"):
    """Where the service listens, and the operators' token, which are all that calling it needs."""

    host: str = "127.0.0.1"
    port: Port = 8000
    ops_host: str = "127.0.0.1"
    ops_port: Port | None = None
    operator_token: Secret = ""

    @property
    def url(self) -> str:
        """The address of the operators' routes, from this machine."""
        host, port = (self.host, self.port) if self.ops_port is None else (self.ops_host, self.ops_port)
        named = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not bound here
        return f"http://[{named}]:{port}" if ":" in named else f"http://{named}:{port}"

    @property
    def token_file(self) -> Path:
        """Where development stores the operators' token."""
        return self.data_dir / "secrets" / "operator_token"

    def stored_operator_token(self) -> str | None:
        """Return the operators' token, as set or as stored; None if there is none that can be read."""
        if self.operator_token:
            return self.operator_token
        try:
            return self.token_file.read_text("ascii").strip() or None
        except (OSError, ValueError):
            return None


class Settings(ServiceLocation, frozen=True, kw_only=True, rename="upper"):
    """Every setting. Seconds, bytes, milliseconds and micro-credits are in the names.

    ``SERVER_KEY`` seals quotes and asset links and peppers one-time codes; :meth:`derived_key` returns a key for
    each purpose. ``public_url`` None: the address that the service listens on. ``asset_store`` local: results are
    stored in ``data_dir``. ``s3_endpoint`` None: Amazon's own for the region. ``member_address``: where members on
    other machines reach this one. ``trusted_proxies``: the peers whose ``proxy_header`` names the client's address.
    ``ops_port`` None: operators' routes are on the public port. ``processes``: worker processes below a parent; 0
    is one process without a parent. ``waiting_per_account_max``: how many requests of an account may wait, or
    stream, at one process. ``file_bytes_max``: the largest file; ``files_max`` and ``files_bytes_max``: those of an
    account together. ``checker_share``: the share of the time that the checker of the ledger takes; 0 is none.
    ``webhook_local_allowed``: events may go to http and to private addresses. ``receipt_font``: a font
    for characters that the usual one of receipts lacks. ``log_memory_bytes``, ``log_memory_s``: how
    much of the newest log lines a process keeps in memory. The repr shows no value.
    """

    env: Literal["development", "production"] = "development"
    processes: Annotated[int, Meta(ge=0, le=64)] = 0
    connections_max: Count = 4096
    connections_per_peer_max: Count = 512
    waiting_per_account_max: Count = 500
    head_timeout_s: Seconds = 15.0
    body_timeout_s: Seconds = 60.0
    send_timeout_s: Seconds = 20.0
    idle_timeout_s: Seconds = 60.0
    public_url: BaseUrl | None = None
    callback_secret: Secret = ""
    sandbox_secret: Secret = ""
    server_key: Secret = ""
    server_key_previous: Secret = ""
    card_api_key: str | None = None
    card_api_base: BaseUrl | None = None
    card_webhook_secrets: TextList = msgspec.field(default=(), name="CARD_WEBHOOK_SECRET")
    card_publishable_key: str | None = None
    smtp_url: SmtpUrl | None = None
    mail_from: str = "Holdfast <no-reply@localhost>"
    log_format: Literal["console", "json"] = "console"
    log_level: LogLevel = "info"
    log_memory_bytes: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 64 * 1024 * 1024
    log_memory_s: Seconds = 600.0
    operators: Emails = ()
    operator_readers: Emails = ()
    operator_session_ttl_s: Lifetime = 43_200
    brand_id: str = "holdfast"
    legal_entity_id: str = "holdfast"
    merchant_of_record: str = "Holdfast"
    provider_account_id: str = "holdfast"
    seller_name: str = ""
    seller_address: str = ""
    seller_tax_id: str = ""
    receipt_prefix: NumberPrefix = "R-"
    receipt_font: ExistingFile | None = None
    sandbox_enabled: bool = True
    otp_ttl_s: Annotated[int, Meta(ge=30, le=3600)] = 600
    otp_attempts: Annotated[int, Meta(ge=1, le=20)] = 5
    otp_failures_day: Annotated[int, Meta(ge=1, le=1000)] = 20
    otp_resend_s: Annotated[int, Meta(ge=0, le=3600)] = 30
    otp_per_email_hour: Count = 5
    otp_per_email_day: Count = 10
    otp_per_origin_hour: Count = 30
    otp_all_origins_hour: Count = 20
    otp_all_origins_day: Count = 40
    trusted_proxies: Proxies = ()
    proxy_header: ProxyHeader = "X-Forwarded-For"
    revoked_keys_retention_s: Lifetime = 2_592_000
    session_ttl_s: Lifetime = 86_400
    quote_ttl_s: Count = 900
    asset_link_ttl_s: Count = 3600
    recharge_max_micro: MicroCredits = msgspec.field(default=10_000_000_000, name="RECHARGE_MAX")
    order_max_micro: MicroCredits = msgspec.field(default=10_000_000_000, name="ORDER_MAX")
    paid_credit_days: Annotated[int, Meta(ge=0, le=36_500)] = 0
    sandbox_order_ttl_s: Annotated[int, Meta(ge=1, le=86_400)] = 1800
    card_order_ttl_s: Annotated[int, Meta(ge=1, le=86_400)] = 86_400
    body_bytes_max: Annotated[int, Meta(ge=1024, le=16 * 1024 * 1024)] = 2 * 1024 * 1024
    header_bytes_max: Annotated[int, Meta(ge=4096, le=1024 * 1024)] = 32 * 1024
    header_count_max: Annotated[int, Meta(ge=20, le=1000)] = 100
    ask_deadline_s: Seconds = 10.0
    mailbox_max: Count = 1000
    idle_passivate_s: Seconds = 120.0
    active_max: Count = 20_000
    tasks_in_flight_max: Count = 1000
    task_creates_per_account_s: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    task_creates_burst: Count = 20_000
    stored_input_bytes_max: Annotated[int, Meta(ge=0, le=2**40 - 1)] = 256 * 1024 * 1024
    file_bytes_max: Annotated[int, Meta(ge=1024, le=2**31 - 1)] = 64 * 1024 * 1024
    files_max: Annotated[int, Meta(ge=0, le=10_000_000)] = 10_000
    files_bytes_max: Annotated[int, Meta(ge=0, le=2**50 - 1)] = 1024 * 1024 * 1024
    file_retention_s: Lifetime = 604_800
    provider_removed_grace_s: Seconds = 300.0
    pool_size: Annotated[int, Meta(ge=1, le=100)] = 8
    checker_share: Share = 0.05
    shutdown_s: Seconds = 20.0
    clock_off_max_s: Seconds = 3600.0
    asset_store: Literal["local", "s3"] = "local"
    s3_bucket: str = ""
    s3_region: str = "us-east-1"
    s3_endpoint: BaseUrl | None = None
    s3_access_key_id: str = ""
    s3_secret_access_key: str = ""
    member_address: HostAndPort | None = None
    member_certificate: ExistingFile | None = None
    member_key: PrivateFile | None = None
    member_ca: ExistingFile | None = None
    webhook_timeout_s: Seconds = 15.0
    webhook_give_up_s: Count = 259_200
    webhook_local_allowed: bool = True
    webhooks_max: Annotated[int, Meta(ge=1, le=1000)] = 16
    studio_port: Port = 0
    card_emulator_port: Port = 0
    card_timeout_s: Seconds = 10.0
    card_retries: Annotated[int, Meta(ge=0, le=5)] = 2
    card_automatic_payment_methods: bool = True
    idempotency_ttl_s: Lifetime = 86_400
    stuck_turn_s: Seconds = 30.0
    reports_retention_s: Lifetime = 2_592_000
    reports_max: Annotated[int, Meta(ge=1_000, le=2**31 - 1)] = 500_000

    @property
    def is_production(self) -> bool:
        """Whether this is production: without debug codes, emulators and generated secrets."""
        return self.env == "production"

    @property
    def has_token_file(self) -> bool:
        """Whether the operators' token was generated, and is in its file."""
        return not self.is_production and self.token_file.exists()

    @property
    def waiting_max(self) -> int:
        """How many requests may wait, or stream, at one process: the others have half of the connections."""
        return max(1, self.connections_max // 2)

    @property
    def otp_pepper(self) -> bytes:
        """The key of the hashes of one-time codes."""
        return self.derived_key("one-time codes")

    @property
    def quote_keys(self) -> tuple[bytes, ...]:
        """The keys that open quotes; the first seals them."""
        return self.derived_keys("quotes")

    @property
    def webhook_keys(self) -> tuple[bytes, ...]:
        """The keys that accounts' webhook secrets are derived from; customers are shown those of the first."""
        return self.derived_keys("webhook secrets")

    def derived_key(self, purpose: str) -> bytes:
        """Derive a 32-byte key for one purpose: what is sealed for one purpose cannot be opened for another."""
        return self.derived_keys(purpose)[0]

    def derived_keys(self, purpose: str) -> tuple[bytes, ...]:
        """Return the key for one purpose and that of the previous server key, if any, which makes nothing new."""
        secrets = [secret.encode() for secret in (self.server_key, self.server_key_previous) if secret]
        server_keys = [hmac.digest(secret, b"holdfast server key", "sha256") for secret in secrets]
        return tuple(hmac.digest(key, b"holdfast " + purpose.encode(), "sha256") for key in server_keys)

    def secret_values(self) -> tuple[str, ...]:
        """Return every secret in clear, for the scrubber that removes them from logs and reports.

        Of a URL it is the password, both percent-encoded and decoded.
        """
        own = (self.operator_token, self.callback_secret, self.sandbox_secret)
        keys = (self.server_key, self.server_key_previous, self.card_api_key, self.s3_secret_access_key)
        passwords = [word for url in (self.database_url, self.smtp_url) if url for word in _passwords(url)]
        given = (*own, *keys, *self.card_webhook_secrets, *passwords)
        return tuple(dict.fromkeys(value for value in given if value))


_NAMES: Final = tuple(field.encode_name for field in msgspec.structs.fields(Settings))
_NAMES_OF_FILES: Final = {"CATALOG", "CELLS", "DATA_DIR", "RECEIPT_FONT", *MEMBER_TLS}
"""The settings that are names of files themselves."""


def environment() -> MutableMapping[str, str]:
    """Return this process's environment; no other module reads it."""
    return os.environ


def override(variables: MutableMapping[str, str], given: Mapping[str, str]) -> None:
    """Replace the settings of these names in variables of the environment."""
    for name, value in given.items():
        variables[f"{PREFIX}{name}"] = value
        variables.pop(f"{PREFIX}{name}{IN_FILE}", None)


def read_env_file(path: Path) -> Mapping[str, str]:
    """Return the variables of a file. Raises :class:`SettingsFault`."""
    return _parsed(path).variables


def _parsed(path: Path) -> EnvFile:
    try:
        return parse_env_file(path.read_bytes())
    except OSError as exc:
        raise SettingsFault((f"{path} cannot be read: {exc.strerror}",)) from exc
    except EnvFileFault as fault:
        raise SettingsFault((f"{path}: {fault}",)) from None


def use_env_file(path: Path) -> tuple[str, ...]:
    """Add the variables of a file to those of this process and its children, whose own values stay.

    Returns warnings. Raises :class:`SettingsFault`.
    """
    found = _parsed(path)
    warnings = list(found.left_out)
    if is_open_to_all(path):
        warnings.append("can be read or written by every user of this machine")
    own = set(os.environ)
    for name, value in found.variables.items():
        # What this process has of a setting, a value or a file, takes precedence over both forms here.
        other = name.removesuffix(IN_FILE) if name.endswith(IN_FILE) else f"{name}{IN_FILE}"
        if name not in own and not (name.startswith(PREFIX) and other in own):
            os.environ[name] = value
    return tuple(f"{path}: {line}" for line in warnings)


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Read and validate the settings; in development also create DATA_DIR and missing secrets.

    Raises :class:`SettingsFault` and, in production, ``CannotEstimate``; then it has written nothing.
    """
    given, unread = _given(environ)
    if given.get("ENV") == "production":
        given = PRODUCTION_DEFAULTS | given
    settings = _read(Settings, given, unread, find_faults(given))
    if not settings.is_production:
        return msgspec.structs.replace(settings, **_development_secrets(settings))
    if not settings.server_key:
        # Derived from the operators' token if it is not set, so it changes when that token does.
        derived = hmac.digest(settings.operator_token.encode(), b"holdfast server key material", "sha256").hex()
        return msgspec.structs.replace(settings, server_key=derived)
    return settings


def load_locations(environ: Mapping[str, str]) -> Locations:
    """Read only the locations. Raises :class:`SettingsFault`; writes nothing."""
    given, unread = _given(environ)
    return _read(Locations, given, unread, (*find_location_faults(given), *find_cell_faults(given)))


def load_service_location(environ: Mapping[str, str]) -> ServiceLocation:
    """Read only what calling the service needs. Raises :class:`SettingsFault`; writes nothing."""
    given, unread = _given(environ)
    return _read(ServiceLocation, given, unread)


def _given(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the given values, and what is wrong with those that are in files, both by the settings' names."""
    variables = {
        name.removeprefix(PREFIX): value.strip()
        for name, value in environ.items()
        if name.startswith(PREFIX) and value.strip()
    }
    values, unread = {}, {}
    for name, value in variables.items():
        setting = name.removesuffix(IN_FILE)
        if setting == name or setting not in _NAMES or setting in _NAMES_OF_FILES:
            values[name] = value
        elif setting in variables:
            unread[setting] = f"is set, and so is {PREFIX}{setting}; remove one of them"
        else:
            try:
                values[setting] = read_file_value(value)
            except ValueError as fault:
                unread[setting] = str(fault)
    return values, unread


def _read(kind: type[S], given: Mapping[str, str], unread: Mapping[str, str], faults: Iterable[Fault] = ()) -> S:
    """Read the settings.

    Raises :class:`SettingsFault` for invalid values, unknown names, ``unread`` files, and ``faults`` of settings
    whose file was not unread.
    """
    types = get_type_hints(kind, include_extras=True)
    values, invalid = {}, []
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        try:
            if name in given:
                values[field.name] = read_value(types[field.name], given[name])
        except ValueError as fault:
            invalid.append((name, str(fault)))
    unknown = [(name, _not_a_setting(name)) for name in given if name not in _NAMES]
    of_files = [(f"{name}{IN_FILE}", trouble) for name, trouble in unread.items()]
    others = [each for each in (*invalid, *unknown, *faults) if each[0] not in unread]
    lines = tuple(f"{PREFIX}{name} {trouble}" for name, trouble in (*of_files, *others))
    if lines:
        raise SettingsFault(lines)
    return kind(**values)


def _not_a_setting(name: str) -> str:
    near = difflib.get_close_matches(name, _NAMES, n=1)
    return "is not a setting" + (f"; did you mean {PREFIX}{near[0]}?" if near else "")


def _passwords(url: str) -> tuple[str, ...]:
    """The passwords inside a URL; libpq takes one in the query as well."""
    # urlsplit refuses what libpq takes: several hosts with an IPv6 address among them.
    authority = re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0]
    query = url.partition("?")[2].partition("#")[0]
    password = authority.rpartition("@")[0].partition(":")[2]
    in_query = [value for name, value in parse_qsl(query) if name in {"password", "sslpassword"}]
    inside = (password, unquote(password)) if password else ()
    return (*inside, *in_query)


def _development_secrets(settings: Settings) -> dict[str, str]:
    """Return the stored value of each missing secret; one that is not stored yet is generated."""
    folder = settings.data_dir / "secrets"
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        return {
            name: read_or_create_secret(folder / name)
            for name in map(str.lower, OWN_SECRETS)
            if not getattr(settings, name)
        }
    except OSError as exc:
        raise SettingsFault((f"{PREFIX}DATA_DIR: cannot store secrets in {folder}: {exc.strerror}",)) from exc
    except ValueError:
        raise SettingsFault(
            (f"{PREFIX}DATA_DIR: a file in {folder} has no secret; restore or remove it",)
        ) from None


def read_or_create_secret(path: Path) -> str:
    """Read a secret's file, or create it atomically, so that processes started together agree on one value.

    Raises OSError, and ValueError for a file that is not one word of ASCII.
    """
    if not path.exists():
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            draft.touch(mode=0o600, exist_ok=False)
            with draft.open("w", encoding="ascii") as file:
                file.write(secrets.token_urlsafe(36) + "\n")
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    [secret] = path.read_text("ascii").split()
    return secret
