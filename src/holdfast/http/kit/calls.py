"""One HTTP call: its caller, its body, and what a handler can do with them.

The order is the same for every route: form of the credential → caller (for sessions, and for routes with a body) →
body → handler. Any other call authenticates its caller in its handler, with the lookups that the handler needs.

Nothing here changes state: a client that disconnects cancels its handler at any point, so handlers only read and
ask actors. Refusals are values, exceptions are faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar, TypeVarTuple

import msgspec
from sqlalchemy import Connection

from holdfast.actors.account.by_keys import NoteChange, by_key
from holdfast.actors.account.messages import RecordKeyUse
from holdfast.actors.account.replies import replay
from holdfast.actors.runtime.messages import Command, IdempotencyKey, Replayed
from holdfast.actors.runtime.refs import AskRef
from holdfast.http.kit import bodies
from holdfast.http.kit.bodies import INPUT_BODY_VALUES_MAX, SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX
from holdfast.http.kit.body_memory import UNCOUNTED_BYTES_MAX, HeldBody
from holdfast.http.kit.client_address import client_address, origin_of
from holdfast.http.kit.credentials import Bearer, CredentialKind, KnownKey, read_bearer, valid_key, valid_session
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.forms import Form, FormFile, is_form
from holdfast.http.kit.operator_access import identify
from holdfast.http.kit.operators import CSRF_HEADER, MAY_ONLY_READ, Operator, OperatorRole
from holdfast.http.kit.other_cells import require_here
from holdfast.http.kit.requests import HoldfastRequest
from holdfast.http.kit.values import read_idempotency_key, read_restart_wait
from holdfast.ledger.api_keys import SCOPES, TASKS_READ, lacking_scope
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.credentials import SessionRecord, find_api_keys, find_sessions
from holdfast.persistence.queries.replies import find_reply
from holdfast.persistence.records.key_rows import ApiKeyRecord
from holdfast.persistence.records.rows import AccountChange, IdempotencyProbe
from holdfast.persistence.server.connections import in_one_transaction
from holdfast.persistence.server.lookups import Find, Lookup
from holdfast.settings.settings import Settings

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
Ts = TypeVarTuple("Ts")

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Caller: TypeAlias = SessionRecord | ApiKeyRecord

_FIND: Final[dict[CredentialKind, Find[bytes, Any]]] = {"session": find_sessions, "api_key": find_api_keys}


class Auth(Enum):
    """How a route authenticates its caller."""

    __hash__ = object.__hash__  # in C, unlike that of an enumeration: each request looks its route's member up

    NONE = "none"
    OPTIONAL = "optional"
    SESSION = "session"
    """A session; no scope of an API key opens the route."""
    API_KEY = "api_key"
    SESSION_OR_KEY = "session_or_key"
    """A session, or an API key with the route's scope."""
    KEY_OR_LINK = "key_or_link"
    """An API key, or a signature in the query, which the handler checks."""
    CALLBACK_SIGNATURE = "callback_signature"
    PROVIDER_WEBHOOK = "provider_webhook"
    SANDBOX_SIGNATURE = "sandbox_signature"
    CARD_SIGNATURE = "card_signature"
    OPERATOR_READ = "operator_read"
    OPERATOR_ACT = "operator_act"


SIGNED: Final = frozenset(
    {Auth.CALLBACK_SIGNATURE, Auth.PROVIDER_WEBHOOK, Auth.SANDBOX_SIGNATURE, Auth.CARD_SIGNATURE}
)
"""Of notifications, whose addresses their senders may extend."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The requirements of a route that are checked before its handler runs."""

    method: Method
    path: str
    _: KW_ONLY

    # Who may call it.
    auth: Auth = Auth.NONE
    scope: str | None = None
    """What an API key must be allowed to do."""
    returns_results: bool = False
    """The response has results of a task, so that the key needs the scope to read these, too."""

    # A parsed body. It has at most :data:`SMALL_BODY_BYTES_MAX` bytes, and may be omitted if ``body_optional``.
    body: type[msgspec.Struct] | None = None
    """Its fields; unknown ones are ignored."""
    other_fields_are_input: bool = False
    """It may have the fields of a model's input beside its own."""
    takes_input: bool = False
    """It contains a model's input, and its limit is a setting, or :data:`ANONYMOUS_BODY_BYTES_MAX` for a caller
    without a credential."""

    # A body that the handler receives unparsed.
    raw_body_bytes_max: int | None = None
    """The limit of its bytes; None: the body is parsed."""
    raw_body_limit: Callable[[Call], int] | None = None
    """Returns the limit of a single call, if that may be lower."""

    # A body that is read only when the handler, which authenticates the caller, asks for it.
    files_max: int = 0
    """How many files it may have. If the route has a ``body`` too, only a form is read so."""

    # How it is handled.
    action: str | None = None
    """What an operator does by it, which is then recorded."""
    is_urgent: bool = False
    """The action is done also while the database is away."""

    @property
    def name(self) -> str:
        """The route's name in idempotency records and metrics."""
        return f"{self.method} {self.path}"

    @property
    def is_of_owner(self) -> bool:
        """Whether the caller is authenticated first: it is the owner's session, or a key that changes something."""
        return self.auth is Auth.SESSION or (self.auth is Auth.SESSION_OR_KEY and self.method != "GET")

    @property
    def body_optional(self) -> bool:
        """Whether the body may be omitted. That of a PUT replaces what is stored, by defaults too."""
        return self.method == "POST" and self.body is not None and not bodies.required_names(self.body)


ANONYMOUS_BODY_BYTES_MAX: Final = 64 * 1024
"""The largest body with a model's input from a caller without a credential."""

FORM_BYTES_MAX: Final = 1024 * 1024
"""How much a body with files may have besides them."""

LIGHT_BYTES_MAX: Final = 32 * 1024
LIGHT_VALUES_MAX: Final = 200
"""The limits of a body that is decoded and validated on the event loop, in well under a millisecond."""

_WANTED: Final[dict[Auth, CredentialKind]] = {
    Auth.SESSION: "session",
    Auth.API_KEY: "api_key",
    Auth.KEY_OR_LINK: "api_key",
}
BY_BEARER: Final = frozenset({*_WANTED, Auth.SESSION_OR_KEY, Auth.OPTIONAL})
_ROLES: Final[dict[Auth, OperatorRole]] = {Auth.OPERATOR_READ: "read", Auth.OPERATOR_ACT: "act"}


class Call:
    """One request, as its handler sees it.

    Before the handler runs, ``session`` is set for a route of sessions, ``known_key`` for one of keys with a body
    or files, for one of sessions, as a key without an id that may do everything with tasks, and for one of both
    that changes something, ``operator`` for one of operators. ``json`` and ``body`` are the parsed body, ``files``
    those of a form, ``raw`` its bytes, and ``body_bytes`` how many of it are in memory.
    ``ignored`` are the names in the body that mean nothing here.
    If the call ``is_replay``, its response says that it is that to an earlier request.
    """

    __slots__ = (
        "_body", "_caller", "_caller_id", "_fingerprint", "_held_body", "_is_heavy",
        "bearer", "body_bytes", "deps", "files", "ignored", "is_replay", "json", "known_key", "operator", "path",
        "raw", "read_shares", "request", "route",
    )  # fmt: skip

    known_key: KnownKey

    def __init__(self, deps: Dependencies, route: Needs, request: HoldfastRequest, path: dict[str, str]) -> None:
        self.deps = deps
        self.read_shares = deps.access.read_shares
        self.route = route
        self.request = request
        self.path = path
        self.bearer: Bearer | None = None
        self.operator: Operator | None = None
        self.json: bodies.JsonObject = {}
        self.files: tuple[FormFile, ...] = ()
        self.raw = b""
        self.body_bytes = 0
        self.is_replay = False
        self.ignored: list[str] = []
        self._body: msgspec.Struct | None = None
        self._caller: Caller | None = None
        self._fingerprint: bytes | None = None
        self._held_body: HeldBody | None = None
        self._is_heavy = False
        self._caller_id: str | None = None

    # ------------------------------------------------------------------------------------------- the body

    def body(self, shape: type[S]) -> S:
        """Return the parsed body, of the type that the route declares."""
        assert isinstance(self._body, shape)
        return self._body

    async def prepare(self) -> Refusal | None:
        """Check what the route requires, before its handler runs."""
        bytes_max = self.body_bytes_max()
        length = self.request.content_length
        if (length or 0) > bytes_max:
            return _too_large(bytes_max)
        refusal = await self.identify_operator() if self.route.auth in _ROLES else self._read_credential()
        if self.route.auth is Auth.OPTIONAL and (length is None or length > ANONYMOUS_BODY_BYTES_MAX):
            # A body above the anonymous limit needs a valid credential before it is read.
            self._caller_id = await self.account_of_caller()
            if self._caller_id is None:
                bytes_max = min(bytes_max, ANONYMOUS_BODY_BYTES_MAX)
                if (length or 0) > bytes_max:
                    return _too_large(bytes_max, " without a valid credential")
        if refusal is None and (self.route.body is not None or self.route.files_max or self.route.is_of_owner):
            refusal = await self._authenticate()
        if refusal is not None or self.route.method == "GET" or self._is_read_by_handler():
            return refusal
        if (length or 0) <= UNCOUNTED_BYTES_MAX and not self.request.sent.get(b"transfer-encoding"):
            return await self._take_body(bytes_max)
        body = self._hold_body()
        with body.preparation:
            refusal = await self._take_body(bytes_max, body.add)
        return body.begin_request() or refusal

    def _hold_body(self) -> HeldBody:
        """Begin to count the body in memory."""
        self._held_body = self.deps.access.body_memory.begin(self.request.caller, self.origin())
        return self._held_body

    async def _take_body(self, bytes_max: int, count: Callable[[int], None] | None = None) -> Refusal | None:
        """Read the body and parse it."""
        self.raw = raw = await self.request.read_body(bytes_max, count)
        self.body_bytes = len(raw)
        self._is_heavy = len(raw) > LIGHT_BYTES_MAX
        if self.route.raw_body_bytes_max is not None:
            return None
        size = None if self._is_heavy else bodies.json_size(raw, LIGHT_VALUES_MAX)
        self._is_heavy = size is None
        refusal = await self.compute(self._read_body, raw, size)
        return None if refusal is None else await self.refuse_authenticated(refusal)

    def _is_read_by_handler(self) -> bool:
        """Whether the body may have files."""
        route = self.route
        return route.files_max > 0 and (
            route.body is None or is_form(next(iter(self.request.sent.get(b"content-type", [])), None))
        )

    def body_bytes_max(self) -> int:
        """Return the limit of the body in bytes."""
        route, most = self.route, self.deps.settings.body_bytes_max
        if self._is_read_by_handler():
            return route.files_max * self.deps.settings.file_bytes_max + FORM_BYTES_MAX
        if route.raw_body_limit is not None:
            return min(route.raw_body_bytes_max or most, route.raw_body_limit(self))
        return route.raw_body_bytes_max or (most if route.takes_input else min(most, SMALL_BODY_BYTES_MAX))

    async def compute(self, work: Callable[[*Ts], T], *given: *Ts, caller: str | None = None) -> T:
        """Call CPU-bound work: directly if the body is small, else in a thread, in which callers take turns.

        With ``caller`` always in a thread, for work that does not depend on this body's size. Raises
        :class:`~holdfast.actors.runtime.faults.Overloaded` if too many jobs of the caller are waiting.
        """
        if caller is None:
            if not self._is_heavy:
                return work(*given)
            caller = self._caller_id or f"origin:{self.origin()}"
        return await self.deps.access.threads.run(caller, partial(work, *given))

    def _read_body(self, raw: bytes, size: bodies.JsonSize | None) -> Refusal | None:
        """Read the body, whose ``size`` is known if it is light."""
        shape = self.route.body
        if not raw.strip() and (shape is None or self.route.body_optional):
            self._body = None if shape is None else shape()
            return None
        content_type = next(iter(self.request.sent.get(b"content-type", [])), None)
        refusal = bodies.check_media_type(content_type)
        if refusal is not None:
            return refusal
        values_max = INPUT_BODY_VALUES_MAX if self.route.takes_input else SMALL_VALUES_MAX
        parsed = bodies.parse_object(raw, values_max=values_max, size=size)
        if isinstance(parsed, Refusal):
            return parsed
        if shape is None:
            # Unknown keys are ignored, and a route without a body knows none.
            return None
        if not self.route.other_fields_are_input:
            unknown = bodies.unknown_names(parsed, shape)
            if isinstance(unknown, Refusal):
                return unknown
            self.ignored = unknown
        body = bodies.convert_body(parsed, shape)
        if isinstance(body, Refusal):
            return body
        self.json, self._body = parsed, body
        if self._is_heavy and "Idempotency-Key" in self.request.headers:
            self._fingerprint = bodies.fingerprint(self.request.path, parsed)
        return None

    def take_form(self, form: Form, shape: type[msgspec.Struct]) -> Refusal | None:
        """Take a form as the body."""
        body = bodies.convert_body(form.fields, shape, strict=False)
        if isinstance(body, Refusal):
            return body
        self.json, self.files, self._body = form.fields, form.files, body
        self.body_bytes, self._is_heavy = form.memory_bytes, form.memory_bytes > LIGHT_BYTES_MAX
        self._fingerprint = bodies.fingerprint(self.request.path, form.facts)
        if form.memory_bytes <= UNCOUNTED_BYTES_MAX:
            return None
        held = self._hold_body()
        held.add(form.memory_bytes)
        return held.begin_request()

    def drop_body(self) -> None:
        """Forget the body, of which a request that waits for long has no use any more."""
        self.raw, self.json, self.files, self._body = b"", {}, (), None
        self.request.kept_body = None
        self.release_body()

    def release_body(self) -> None:
        """Count the body in memory no more."""
        if self._held_body is not None:
            self._held_body.release()

    def fingerprint(self) -> bytes:
        """Return what requests with the same path and body have in common, however a form was encoded."""
        if self._fingerprint is None:
            self._fingerprint = bodies.fingerprint(self.request.path, self.json)
        return self._fingerprint

    # ----------------------------------------------------------------------------------------- the caller

    def _read_credential(self) -> Refusal | None:
        if self.route.auth not in BY_BEARER:
            return None
        if self.route.auth is Auth.KEY_OR_LINK and "sig" in self.request.args:
            return None
        known = self.deps.access.key_cache
        found = read_bearer(self.request.sent.get(b"authorization", []), _WANTED.get(self.route.auth), known)
        if isinstance(found, Refusal):
            return None if self.route.auth is Auth.OPTIONAL else found
        self.bearer, self.request.key_prefix = found, found.key_prefix
        return None

    async def identify_operator(self) -> Refusal | None:
        """Set ``operator`` from the request's credential, also of one who may only read what the route changes.

        Refuses as ``operator_access.identify`` does, then with :data:`MAY_ONLY_READ`.
        """
        found = await identify(self.deps, self.request, self.origin(), csrf_token=self.csrf_token())
        if isinstance(found, Refusal):
            return found
        self.operator, self.request.caller = found, found.name
        return MAY_ONLY_READ if _ROLES[self.route.auth] == "act" and found.role != "act" else None

    def csrf_token(self) -> str | None:
        """Return the token that was sent to show that a page of the session makes the change."""
        return self.request.headers.get(CSRF_HEADER)

    async def _authenticate(self) -> Refusal | None:
        if self.route.is_of_owner:
            caller = await self._verify()
            if isinstance(caller, Refusal):
                return caller
            if isinstance(caller, SessionRecord):
                self.take_session(caller)
            else:
                self._caller = caller
        elif self.route.auth is Auth.API_KEY:
            assert self.bearer is not None
            cache = self.deps.access.key_cache
            known = cache.get(self.bearer.sha256) or await cache.get_when_read(self.bearer.sha256)
            if known is not None:
                self.known_key, self.request.caller = known, known.account_id
                self._record_use(known)
            else:
                with cache.reading(self.bearer.sha256):
                    key = await self.verify_key()
                if isinstance(key, Refusal):
                    return key
            if self.route.returns_results and TASKS_READ not in self.known_key.scopes:
                return await self.refuse_authenticated(lacking_scope(TASKS_READ))
            self._caller_id = self.known_key.account_id
        return None

    def take_session(self, session: SessionRecord) -> None:
        """Set the session that the call is made with."""
        self._caller = session
        self.known_key = KnownKey(session.account_id, "", frozenset(SCOPES))

    def _record_use(self, key: KnownKey) -> None:
        """Record the use of a key at its account, at most once a minute."""
        assert self.bearer is not None
        if self.deps.access.key_cache.is_use_due(self.bearer.sha256):
            self.deps.accounts.ref(key.account_id).tell(RecordKeyUse(key.key_id, self.deps.now()))

    @property
    def session(self) -> SessionRecord:
        """The session that a route of sessions is called with."""
        assert isinstance(self._caller, SessionRecord)
        return self._caller

    async def verify_key(self, *lookups: Lookup[Any, Any]) -> ApiKeyRecord | Refusal:
        """Authenticate the API key, check its scope, and run ``lookups`` with the lookup of its row.

        Refuses as :func:`~holdfast.http.kit.credentials.valid_key` does.
        """
        key = await self._verify(*lookups)
        assert not isinstance(key, SessionRecord)
        return key

    async def verify_caller(self, *lookups: Lookup[Any, Any]) -> str | Refusal:
        """Authenticate the caller as the route requires, run ``lookups`` with that, and return the account's id."""
        caller = await self._verify(*lookups)
        return caller if isinstance(caller, Refusal) else caller.account_id

    async def _verify(self, *lookups: Lookup[Any, Any]) -> Caller | Refusal:
        if self._caller is not None and not lookups:
            return self._caller
        assert self.bearer is not None
        lookup = Lookup(_FIND[self.bearer.kind], self.bearer.sha256)
        await self._look_up(lookup, *lookups)
        if lookup.found is not None:
            # Also of one that is not valid any more.
            self.request.caller = (lookup.found if self.bearer.kind == "session" else lookup.found[0]).account_id
        caller = self._valid(lookup.found)
        if not isinstance(caller, Refusal):
            self._admit(caller)
        elif lookup.found is None:
            await require_here(self.deps, self.request, self.bearer.place)
        return caller

    def _valid(self, found: Any) -> Caller | Refusal:
        """Return the caller that was found of the credential, if it is valid for the route."""
        assert self.bearer is not None
        if self.bearer.kind == "session":
            return valid_session(found, self.deps.now())
        key = valid_key(found, self.route.scope, self.deps.now)
        if self.route.returns_results and not isinstance(key, Refusal) and TASKS_READ not in key.terms.scopes:
            return lacking_scope(TASKS_READ)
        return key

    def _admit(self, caller: Caller) -> None:
        """Remember whose the credential is, and record the use of a key."""
        assert self.bearer is not None
        if isinstance(caller, SessionRecord):
            known = KnownKey(caller.account_id, caller.session_id)
        else:
            self.known_key = known = KnownKey(caller.account_id, caller.key_id, frozenset(caller.terms.scopes))
            self._record_use(known)
        self.deps.access.key_cache.put(self.bearer.sha256, known)

    async def look_up_as_caller(self, find: Find[str, T]) -> T | Refusal | None:
        """Authenticate the caller as the route requires, and return what ``find`` finds of its account's id."""
        assert self.bearer is not None
        known = None if self._caller is not None else self.deps.access.key_cache.account_of(self.bearer.sha256)
        lookups = [] if known is None else [Lookup(find, known)]
        account_id = await self.verify_caller(*lookups)
        if isinstance(account_id, Refusal):
            return account_id
        if not lookups:
            lookups = [Lookup(find, account_id)]
            await self._look_up(*lookups)
        return lookups[0].found

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query in the share of the caller; of its origin without a credential, as of who has a link."""
        return await self.read_shares.run(self._reader(), partial(self.deps.database.read, query))

    async def write(self, account_id: str, change: Callable[[Connection], T]) -> T:
        """Write what the journal does not, in the share of an account: sweepers and operators write there, too."""
        write = partial(self.deps.write_record, in_one_transaction(change))
        return await self.deps.access.write_shares.run(account_id, write)

    async def _look_up(self, *lookups: Lookup[Any, Any]) -> None:
        await self.read_shares.run(self._reader(), partial(self.deps.access.lookups.run, *lookups))

    def _reader(self) -> str:
        """Return whose share of the reads this call uses: a credential not verified yet has its origin's."""
        known = None if self.bearer is None else self.deps.access.key_cache.account_of(self.bearer.sha256)
        return known or f"origin:{self.origin()}"

    async def refuse_authenticated(self, refusal: Refusal) -> Refusal:
        """Return the refusal, or that of the API key if it is not valid: a cached key has not been checked yet."""
        if self.route.auth is not Auth.API_KEY:
            return refusal
        key = await self.verify_key()
        return key if isinstance(key, Refusal) else refusal

    async def account_of_caller(self) -> str | None:
        """Return the account of an optional credential; an invalid one counts as none."""
        if self.bearer is None:
            return None
        account_id = await self.verify_caller()
        return None if isinstance(account_id, Refusal) else account_id

    def origin(self) -> str:
        """Return the origin of the request, by which limits count."""
        return origin_of_request(self.request, self.deps.settings)

    def query(self) -> dict[str, list[str]]:
        """Return the query parameters, each with all its values."""
        return self.request.args.to_dict(flat=False) if self.request.query_string else {}

    async def ask(self, ref: AskRef, command: Command[T]) -> T | Refusal:
        """Ask an actor, as the header ``Restart-Wait`` says. Raises its faults, which are in the error table."""
        deadline_s, sent = self.deps.settings.ask_deadline_s, self.request.sent.get(b"restart-wait")
        deadline_s, while_down = read_restart_wait(sent, deadline_s) if sent else (deadline_s, "queue")
        reply = await ref.ask(command, deadline_s=deadline_s, while_down=while_down)
        self.request.had_effect |= not isinstance(reply, Refusal | Replayed)
        return reply

    async def act(self, command: Command[T]) -> T | Refusal:
        """Ask the caller's account, in the name of the API key if the caller is one. Raises as :meth:`ask` does."""
        known = self.known_key
        if known.key_id:
            assert self.route.scope is not None, "no scope, no key"
            command = by_key(command, known.key_id, self.route.scope)
        return await self.ask(self.deps.accounts.ref(known.account_id), command)

    async def note(self, what: AccountChange, subject: str) -> Refusal | None:
        """Note in the account's history what its API key is about to do, unless the caller is the owner's session.

        For what is not done by the account. Refuses a key that cannot do it any more. Raises as :meth:`ask` does.
        """
        if not self.known_key.key_id:
            return None
        assert self.route.scope is not None, "no scope, no key"
        noted = NoteChange(what, subject, by=self.known_key.key_id, scope=self.route.scope)
        return await self.ask(self.deps.accounts.ref(self.known_key.account_id), noted)

    # --------------------------------------------------------------------------------------- idempotency

    def idempotency(self) -> IdempotencyKey | Refusal | None:
        """Return the Idempotency-Key, sent with or without quotes. Refuses with ``invalid_idempotency_key``."""
        sent = self.idempotency_keys()
        if not sent:
            return None
        key = read_idempotency_key(sent)
        if isinstance(key, Refusal):
            return key
        return IdempotencyKey(route=self.route.name, key=key, fingerprint=self.fingerprint())

    def idempotency_keys(self) -> list[str]:
        """Return the values of the header ``Idempotency-Key``, of which there should be at most one."""
        return self.request.sent.get(b"idempotency-key", [])

    def take_reply(self, reply: T | Replayed[T] | Refusal) -> T | Refusal:
        """Return a reply to this request's Idempotency-Key, and note if it is that to an earlier request."""
        if not isinstance(reply, Replayed):
            return reply
        self.is_replay = True
        return reply.reply

    async def refuse(
        self, refusal: Refusal, idempotency: IdempotencyKey | None, reply_type: type[T]
    ) -> Refusal | Replayed[T]:
        """Return the refusal of a request, or the reply to an earlier request with its Idempotency-Key.

        An accepted request is replayed even if it would be refused now (its model was removed).
        It authenticates the caller, because a cached key has not been checked yet.
        """
        account_id = await self.verify_caller()
        if isinstance(account_id, Refusal):
            return account_id
        if idempotency is None:
            return refusal
        probe = IdempotencyProbe(account_id, idempotency.route, idempotency.key)
        oldest = self.deps.now() - timedelta(seconds=self.deps.settings.idempotency_ttl_s)
        found = await self.read(partial(find_reply, probe=probe, oldest=oldest))
        return refusal if found is None else replay(found, idempotency, reply_type)


def origin_of_request(request: HoldfastRequest, settings: Settings) -> str:
    """Return the origin of a request, by which limits count."""
    client = request.scope.get("client")
    address = client_address(
        str(client[0]) if client else None,
        request.headers.getlist(settings.proxy_header),
        settings.trusted_proxies,
        header=settings.proxy_header,
    )
    return origin_of(address)


def _too_large(bytes_max: int, when: str = "") -> Refusal:
    message = f"The body is too large; the maximum is {bytes_max} bytes{when}."
    return Refusal(code="request_too_large", message=message)
