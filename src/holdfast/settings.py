"""Settings: one frozen, validated object, and the only reader of the environment.

Every name has the prefix ``HOLDFAST_``; a blank value counts as unset. All faults are found before any is
reported. In development missing secrets are made once and kept in ``DATA_DIR/secrets``, one file each; in
production they must be given, and weak ones are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.kept_secrets import kept_secret
from holdfast.secret_strength import is_plainly_weak, weakness
from holdfast.settings_reader import PREFIX, IPNetwork, Reader, SettingsFault
from holdfast.settings_warnings import warnings_of

__all__ = ["Place", "Settings", "SettingsFault", "environment", "load_place", "load_settings"]


CARD_KEY_CHARS_MIN = 16
CARD_WEBHOOK_SECRET_CHARS_MIN = 24
_CARD_SECRET = re.compile(r"(?:sk|rk|whsec)_", re.ASCII)
_CARD_KEY = re.compile(r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9_]{16,}", re.ASCII)
_CARD_PUBLIC_KEY = re.compile(r"pk_(?:live|test)_[A-Za-z0-9_]{16,}", re.ASCII)
ProxyHeader = Literal["X-Forwarded-For", "Forwarded"]
PROXY_HEADERS: tuple[ProxyHeader, ...] = get_args(ProxyHeader)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Place:
    """A bucket for stored results. ``endpoint`` None: Amazon's own for the region."""

    bucket: str
    region: str
    endpoint: str | None
    access_key_id: str
    secret_access_key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What this process was told. Seconds, bytes, milliseconds and micro-credits are in the names.

    ``server_key`` (32 bytes) seals quotes and asset links and peppers one-time codes; take a key for each
    purpose from :meth:`derived_key`. ``public_url`` None means: where the service listens. ``s3`` None: results are
    stored in ``data_dir``. ``trusted_proxies``: the peers whose ``proxy_header`` tells where a request comes from.
    ``ops_port`` None: operators' routes are on the public port. ``webhook_local_allowed``: events may go to http
    and to private addresses. ``warnings`` are lines worth showing at start. Secrets are left out of the repr.
    """

    env: Literal["development", "production"]
    host: str
    port: int
    ops_host: str
    ops_port: int | None
    connections_max: int
    connections_per_peer_max: int
    head_timeout_s: float
    body_timeout_s: float
    send_timeout_s: float
    idle_timeout_s: float
    data_dir: Path
    database_url: str | None = field(repr=False)
    public_url: str | None
    operator_token: str = field(repr=False)
    catalog: Path | None
    callback_secret: str = field(repr=False)
    sandbox_secret: str = field(repr=False)
    server_key: bytes = field(repr=False)
    card_api_key: str | None = field(repr=False)
    card_api_base: str | None
    card_webhook_secrets: tuple[str, ...] = field(repr=False)
    card_publishable_key: str | None
    smtp_url: str | None = field(repr=False)
    mail_from: str
    log_format: Literal["console", "json"]
    operators: tuple[str, ...]
    brand_id: str
    legal_entity_id: str
    merchant_of_record: str
    provider_account_id: str
    sandbox_enabled: bool
    otp_ttl_s: int
    otp_attempts: int
    otp_failures_day: int
    otp_resend_s: int
    otp_per_email_hour: int
    otp_per_email_day: int
    otp_per_origin_hour: int
    otp_all_origins_hour: int
    otp_all_origins_day: int
    trusted_proxies: tuple[IPNetwork, ...]
    proxy_header: ProxyHeader
    session_ttl_s: int
    quote_ttl_s: int
    asset_link_ttl_s: int
    recharge_max_micro: int
    order_max_micro: int
    sandbox_order_ttl_s: int
    card_order_ttl_s: int
    body_bytes_max: int
    header_bytes_max: int
    header_count_max: int
    ask_deadline_s: float
    mailbox_max: int
    idle_passivate_s: float
    awake_max: int
    tasks_in_flight_max: int
    task_creates_per_account_s: int
    task_creates_burst: int
    provider_removed_grace_s: float
    pool_size: int
    shutdown_s: float
    s3: S3Place | None
    webhook_timeout_s: float
    webhook_give_up_s: int
    webhook_local_allowed: bool
    studio_port: int
    card_emulator_port: int
    card_timeout_s: float
    card_retries: int
    card_automatic_payment_methods: bool
    idempotency_ttl_s: int
    warnings: tuple[str, ...] = ()

    @property
    def is_production(self) -> bool:
        """Whether this serves real customers: no debug codes, no emulators, no secrets of its own making."""
        return self.env == "production"

    @property
    def otp_pepper(self) -> bytes:
        """What one-time codes and their identifiers are made with."""
        return self.derived_key("one-time codes")

    def derived_key(self, purpose: str) -> bytes:
        """A 32-byte key for one purpose, so that what one seals no other opens."""
        return hmac.digest(self.server_key, b"holdfast " + purpose.encode(), "sha256")

    def secret_values(self) -> tuple[str, ...]:
        """Every secret in clear, for the scrubber that keeps them out of logs and reports.

        Of addresses it is the password, as written there and as it is once percent codes are read.
        """
        several = (self.operator_token, self.callback_secret, self.sandbox_secret, *self.card_webhook_secrets)
        bucket_key = None if self.s3 is None else self.s3.secret_access_key
        passwords = [word for url in (self.database_url, self.smtp_url) if url for word in _passwords(url)]
        given = (*several, self.card_api_key, bucket_key, *passwords)
        return tuple(dict.fromkeys(value for value in given if value))


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Read, validate and complete the settings; may make DATA_DIR and, in development, its secrets.

    Raises :class:`SettingsFault`. Nothing is written unless everything else is in order.
    """
    reader = Reader(environ)
    env: Literal["development", "production"] = reader.choice(
        "ENV", ("development", "production"), default="development"
    )
    production = env == "production"
    data_dir = reader.data_dir()
    given = {
        name: reader.secret(name, required=production)
        for name in ("OPERATOR_TOKEN", "CALLBACK_SECRET", "SANDBOX_SECRET")
    }
    given["SERVER_KEY"] = reader.secret("SERVER_KEY", required=False, strong=production)
    settings = Settings(
        env=env,
        host=reader.text("HOST") or "127.0.0.1",
        port=reader.whole("PORT", 8000, least=0, most=65535),
        ops_host=reader.text("OPS_HOST") or "127.0.0.1",
        ops_port=reader.whole_or_none("OPS_PORT", least=0, most=65535),
        connections_max=reader.whole("CONNECTIONS_MAX", 2048),
        connections_per_peer_max=reader.whole("CONNECTIONS_PER_PEER_MAX", 512),
        head_timeout_s=reader.seconds("HEAD_TIMEOUT_S", 15.0),
        body_timeout_s=reader.seconds("BODY_TIMEOUT_S", 60.0),
        send_timeout_s=reader.seconds("SEND_TIMEOUT_S", 20.0),
        idle_timeout_s=reader.seconds("IDLE_TIMEOUT_S", 60.0),
        data_dir=data_dir,
        database_url=reader.database_url(),
        public_url=reader.base_url("PUBLIC_URL"),
        catalog=reader.file("CATALOG"),
        card_api_key=reader.text("CARD_API_KEY"),
        card_api_base=reader.base_url("CARD_API_BASE"),
        card_webhook_secrets=reader.several("CARD_WEBHOOK_SECRET"),
        card_publishable_key=reader.text("CARD_PUBLISHABLE_KEY"),
        smtp_url=reader.url("SMTP_URL", ("smtp", "smtps")),
        mail_from=reader.text("MAIL_FROM") or "Holdfast <no-reply@localhost>",
        log_format=reader.choice("LOG_FORMAT", ("console", "json"), default="json" if production else "console"),
        operators=reader.emails("OPERATORS"),
        brand_id=reader.text("BRAND_ID") or "holdfast",
        legal_entity_id=reader.text("LEGAL_ENTITY_ID") or "holdfast",
        merchant_of_record=reader.text("MERCHANT_OF_RECORD") or "Holdfast",
        provider_account_id=reader.text("PROVIDER_ACCOUNT_ID") or "holdfast",
        sandbox_enabled=reader.truth("SANDBOX_ENABLED", default=not production),
        otp_ttl_s=reader.whole("OTP_TTL_S", 600, least=30, most=3600),
        otp_attempts=reader.whole("OTP_ATTEMPTS", 5, most=20),
        otp_failures_day=reader.whole("OTP_FAILURES_DAY", 20, most=1000),
        otp_resend_s=reader.whole("OTP_RESEND_S", 30, least=0, most=3600),
        otp_per_email_hour=reader.whole("OTP_PER_EMAIL_HOUR", 5),
        otp_per_email_day=reader.whole("OTP_PER_EMAIL_DAY", 10),
        otp_per_origin_hour=reader.whole("OTP_PER_ORIGIN_HOUR", 30),
        otp_all_origins_hour=reader.whole("OTP_ALL_ORIGINS_HOUR", 20),
        otp_all_origins_day=reader.whole("OTP_ALL_ORIGINS_DAY", 40),
        trusted_proxies=reader.networks("TRUSTED_PROXIES"),
        proxy_header=reader.choice("PROXY_HEADER", PROXY_HEADERS, default="X-Forwarded-For"),
        session_ttl_s=reader.whole("SESSION_TTL_S", 86_400, least=60),
        quote_ttl_s=reader.whole("QUOTE_TTL_S", 900),
        asset_link_ttl_s=reader.whole("ASSET_LINK_TTL_S", 3600),
        recharge_max_micro=reader.credits("RECHARGE_MAX", "10000.00"),
        order_max_micro=reader.credits("ORDER_MAX", "10000.00"),
        sandbox_order_ttl_s=reader.whole("SANDBOX_ORDER_TTL_S", 1800, most=86_400),
        card_order_ttl_s=reader.whole("CARD_ORDER_TTL_S", 86_400, most=86_400),
        body_bytes_max=reader.whole("BODY_BYTES_MAX", 2 * 1024 * 1024, least=1024, most=64 * 1024 * 1024),
        header_bytes_max=reader.whole("HEADER_BYTES_MAX", 32 * 1024, least=4096, most=1024 * 1024),
        header_count_max=reader.whole("HEADER_COUNT_MAX", 100, least=20, most=1000),
        ask_deadline_s=reader.seconds("ASK_DEADLINE_S", 10.0),
        mailbox_max=reader.whole("MAILBOX_MAX", 1000),
        idle_passivate_s=reader.seconds("IDLE_PASSIVATE_S", 120.0),
        awake_max=reader.whole("AWAKE_MAX", 20_000),
        tasks_in_flight_max=reader.whole("TASKS_IN_FLIGHT_MAX", 1000),
        task_creates_per_account_s=reader.whole(
            "TASK_CREATES_PER_ACCOUNT_S", 1000 if production else 0, least=0, most=1_000_000
        ),
        task_creates_burst=reader.whole("TASK_CREATES_BURST", 20_000),
        provider_removed_grace_s=reader.seconds("PROVIDER_REMOVED_GRACE_S", 300.0),
        pool_size=reader.whole("POOL_SIZE", 8, most=100),
        shutdown_s=reader.seconds("SHUTDOWN_S", 20.0),
        s3=_s3_place(reader),
        webhook_timeout_s=reader.seconds("WEBHOOK_TIMEOUT_S", 15.0),
        webhook_give_up_s=reader.whole("WEBHOOK_GIVE_UP_S", 259_200),
        webhook_local_allowed=reader.truth("WEBHOOK_LOCAL_ALLOWED", default=not production),
        studio_port=reader.whole("STUDIO_PORT", 0, least=0, most=65535),
        card_emulator_port=reader.whole("CARD_EMULATOR_PORT", 0, least=0, most=65535),
        card_timeout_s=reader.seconds("CARD_TIMEOUT_S", 10.0),
        card_retries=reader.whole("CARD_RETRIES", 2, least=0, most=5),
        card_automatic_payment_methods=reader.truth("CARD_AUTOMATIC_PAYMENT_METHODS", default=True),
        idempotency_ttl_s=reader.whole("IDEMPOTENCY_TTL_S", 86_400, least=60),
        operator_token="",
        callback_secret="",
        sandbox_secret="",
        server_key=b"",
    )
    _check_card(reader, settings)
    if production:
        if settings.catalog is None:
            reader.fault(
                "CATALOG",
                "is missing; production needs one, or it would sell the placeholder pictures of the studio",
            )
        _refuse_shared(reader, given, settings)
    reader.refuse_unknown()
    reader.raise_faults()
    made = _production_secrets(given) if production else _development_secrets(data_dir, given)
    settings = replace(
        settings,
        operator_token=made["OPERATOR_TOKEN"],
        callback_secret=made["CALLBACK_SECRET"],
        sandbox_secret=made["SANDBOX_SECRET"],
        server_key=hmac.digest(made["SERVER_KEY"].encode(), b"holdfast server key", "sha256"),
    )
    return replace(settings, warnings=(*warnings_of(settings), *_weak_in_development(settings, given)))


@dataclass(frozen=True, slots=True)
class Place:
    """Where things lie: all that commands beside the service need, so that they need no secrets."""

    data_dir: Path
    database_url: str | None = field(repr=False)
    catalog: Path | None


def load_place(environ: Mapping[str, str]) -> Place:
    """Read where things lie, and nothing else. Raises :class:`SettingsFault`; writes nothing."""
    reader = Reader(environ)
    place = Place(reader.data_dir(), reader.database_url(), reader.file("CATALOG"))
    reader.raise_faults()
    return place


def environment() -> Mapping[str, str]:
    """This process's environment, for the command line to hand to :func:`load_settings` or :func:`load_place`."""
    return os.environ


def _s3_place(reader: Reader) -> S3Place | None:
    """The bucket, where ``ASSET_STORE`` is ``s3``; then what it cannot do without must be given."""
    wanted = reader.choice("ASSET_STORE", ("local", "s3"), default="local") == "s3"
    needed = {name: reader.text(name) or "" for name in ("S3_BUCKET", "S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY")}
    region, endpoint = reader.text("S3_REGION") or "us-east-1", reader.base_url("S3_ENDPOINT")
    if not wanted:
        return None
    for name, value in needed.items():
        if not value:
            reader.fault(name, f"is missing; {PREFIX}ASSET_STORE=s3 needs it")
    return S3Place(
        bucket=needed["S3_BUCKET"],
        region=region,
        endpoint=endpoint,
        access_key_id=needed["S3_ACCESS_KEY_ID"],
        secret_access_key=needed["S3_SECRET_ACCESS_KEY"],
    )


def _check_card(reader: Reader, settings: Settings) -> None:
    """Refuse what cannot be a key of the card provider; of one at another address only the length is judged."""
    key, public = settings.card_api_key, settings.card_publishable_key
    if public is not None and _CARD_SECRET.match(public):
        reader.fault("CARD_PUBLISHABLE_KEY", "is a secret key: browsers would be shown it")
    if not settings.is_production:
        return
    is_own_address = settings.card_api_base is not None
    if key is not None and not (len(key) >= CARD_KEY_CHARS_MIN if is_own_address else _CARD_KEY.fullmatch(key)):
        reader.fault("CARD_API_KEY", "does not look like a key of the card provider (sk_live_… or rk_live_…)")
    if public is not None and not is_own_address and not _CARD_PUBLIC_KEY.fullmatch(public):
        reader.fault("CARD_PUBLISHABLE_KEY", "does not look like one (pk_live_…)")
    for secret in settings.card_webhook_secrets:
        if (reason := weakness(secret, chars_min=CARD_WEBHOOK_SECRET_CHARS_MIN)) is not None:
            reader.fault("CARD_WEBHOOK_SECRET", reason)


def _refuse_shared(reader: Reader, given: Mapping[str, str | None], settings: Settings) -> None:
    """Refuse one value for two secrets: whoever knows one of them would know the other."""
    for (name, value), (other, same) in combinations(_named_secrets(given, settings), 2):
        if value == same and name != other:
            reader.fault(other, f"has the same value as {PREFIX}{name}; give each its own")


def _named_secrets(given: Mapping[str, str | None], settings: Settings) -> list[tuple[str, str]]:
    cards = [("CARD_WEBHOOK_SECRET", secret) for secret in settings.card_webhook_secrets]
    bucket = None if settings.s3 is None else settings.s3.secret_access_key
    single = {**given, "CARD_API_KEY": settings.card_api_key, "S3_SECRET_ACCESS_KEY": bucket}
    return [*((name, value) for name, value in single.items() if value), *cards]


def _weak_in_development(settings: Settings, given: Mapping[str, str | None]) -> tuple[str, ...]:
    """What production would refuse, as far as it shows at a glance."""
    if settings.is_production:
        return ()
    return tuple(
        f"{PREFIX}{name} is weak: production would refuse it"
        for name, value in given.items()
        if value is not None and is_plainly_weak(value)
    )


def _passwords(url: str) -> tuple[str, ...]:
    """The passwords inside an address; libpq takes one in the query as well."""
    parts = urlsplit(url)
    asked = [value for name, value in parse_qsl(parts.query) if name in {"password", "sslpassword"}]
    inside = () if parts.password is None else (parts.password, unquote(parts.password))
    return (*inside, *asked)


def _production_secrets(given: Mapping[str, str | None]) -> dict[str, str]:
    """The given secrets; a server key not given is derived from the operator's token (and changes with it)."""
    found = {name: value for name, value in given.items() if value is not None}
    derived = hmac.new(found["OPERATOR_TOKEN"].encode(), b"holdfast server key material", hashlib.sha256)
    return {"SERVER_KEY": derived.hexdigest(), **found}


def _development_secrets(data_dir: Path, given: Mapping[str, str | None]) -> dict[str, str]:
    """The given secrets, and for each missing one the one kept in ``data_dir``, made now if need be."""
    folder = data_dir / "secrets"
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        return {name: value or kept_secret(folder / name.lower()) for name, value in given.items()}
    except OSError as exc:
        raise SettingsFault((f"{PREFIX}DATA_DIR: secrets cannot be kept in {folder}: {exc.strerror}",)) from exc
