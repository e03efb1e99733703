"""Request bodies: raw bytes to a JSON object, strictly, and from there to a typed request.

Refused as ``invalid_json``: more values than the route takes, bytes that are no UTF-8 or no JSON object, NaN and
infinities (also by overflow), duplicate keys, integers of more than 64 bits, nesting deeper than
:data:`NESTING_MAX`, lone surrogates and NUL characters. PostgreSQL cannot store the last two. JSON that parsers
interpret differently is refused, because a body is also fingerprinted.

Values are counted on the bytes, before decoding. A common small body costs one decode and a few passes over its
bytes; only a body with escapes or deep nesting is walked.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections import Counter
from typing import Any, Final, TypeVar

import msgspec

from holdfast.http.kit.values import SHOWN_CHARS_MAX, invalid_parameter, missing_parameter, shown
from holdfast.ledger.plain_json import VALUES_MAX as INPUT_VALUES_MAX
from holdfast.ledger.refusals import Refusal, param_of

SMALL_BODY_BYTES_MAX: Final = 16 * 1024
"""The body limit of a route whose body has a few short fields."""

SMALL_VALUES_MAX: Final = 256
"""The limit of values in such a body; extra keys are allowed and ignored."""

INPUT_BODY_VALUES_MAX: Final = INPUT_VALUES_MAX + 500
"""The limit of values in a body with a model's input. The input has a lower limit of its own."""


class JsonSize(msgspec.Struct, frozen=True):
    """Upper bounds: ``values_count`` of the values without keys, ``containers_count`` of the lists and objects."""

    values_count: int
    containers_count: int


def json_size(raw: bytes, values_max: int) -> JsonSize | None:
    """Count a body's values; None if there are more than ``values_max``.

    Commas and brackets inside strings do not count. For a body that is not JSON the result has no meaning.
    """
    quick = _counted(raw)
    if quick.values_count <= values_max:
        return quick
    # Strings may contain brackets and commas. Without the escapes, every remaining quote starts or ends a string.
    plain = raw.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in raw else raw
    # Each value and each key is at most one string, so this bounds the number of parts split below.
    if len(plain.translate(None, _ALL_BUT_QUOTES)) > 4 * values_max + 2:
        return None
    found = _counted(b"".join(plain.split(b'"')[::2]))
    return found if found.values_count <= values_max else None


def _counted(raw: bytes) -> JsonSize:
    # One pass that deletes all other bytes is equally fast for any input; counting each mark is not.
    marks = raw.translate(None, _ALL_BUT_MARKS)
    containers_count = len(marks) - marks.count(b",")
    # Each value but the first of a container has a comma before it, and each container may have a first one.
    return JsonSize(1 + len(marks), containers_count)


_ALL_BUT_MARKS: Final = bytes(set(range(256)) - set(b",[{"))
_ALL_BUT_QUOTES: Final = bytes(set(range(256)) - set(b'"'))


NESTING_MAX: Final = 64
NAME_CHARS_MAX: Final = 80
LETTERS_MIN: Final = 4
"""Shorter names have too many neighbours."""

JsonObject = dict[str, Any]

S = TypeVar("S", bound=msgspec.Struct)

_MEDIA_TYPE = re.compile(r"application/(?:[a-z0-9.+-]+\+)?json", re.ASCII)
_ERROR_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_ANY_KEY: Final = "[...]"
"""Stands in msgspec's errors for the key of an object."""
_NUMBER_FOR_TEXT = re.compile(r"Expected `str(?: \| null)?`, got `(?:int|float)`")
_UNKNOWN_VALUE = re.compile(r"Invalid enum value (.*)")
_BLANKS: Final = " \t\n\r"
_INTEGER_DIGITS_MAX: Final = 20
_OWN_CODES: Final = {
    "amount": "invalid_amount",
    "balance_below": "invalid_amount",
    "credits": "invalid_amount",
    "email": "invalid_email",
}


class _Refused(ValueError):
    """Raised inside the decoder's hooks; never leaves this module."""


@functools.lru_cache(maxsize=100)
def check_media_type(content_type: str | None) -> Refusal | None:
    """Refuse a body whose media type is not JSON in UTF-8."""
    media_type, _, parameters = (content_type or "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if _MEDIA_TYPE.fullmatch(media_type.strip().lower()) and charset in {"", "utf-8", "utf8"}:
        return None
    given = shown(content_type) if content_type else "without a media type"
    message = f"The body must be sent as application/json in UTF-8, not {given}."
    return Refusal(code="unsupported_media_type", message=message)


def parse_object(
    raw: bytes, *, values_max: int = INPUT_BODY_VALUES_MAX, size: JsonSize | None = None
) -> JsonObject | Refusal:
    """Read a body as one JSON object of at most ``values_max`` values; ``size`` is its size, if known to fit."""
    size = size or json_size(raw, values_max)
    if size is None:
        return _invalid(f"The body has more than {values_max} values.")
    try:
        text = raw.decode("utf-8").strip(_BLANKS)
        value, end = _DECODER.raw_decode(text)
    except UnicodeDecodeError:
        return _invalid("The body is not UTF-8.")
    except _Refused as refused:
        return _invalid(str(refused))
    except RecursionError:
        return _invalid("The body is nested too deeply.")
    except ValueError:
        return _invalid("The body is not JSON.")
    if end < len(text):
        return _invalid("The body is not JSON.")
    if not isinstance(value, dict):
        return _invalid("The body must be a JSON object.")
    if raw.count(b"\\u") or size.containers_count > NESTING_MAX:
        return _checked(value)
    return value


def convert_body(body: JsonObject, shape: type[S], *, strict: bool = True) -> S | Refusal:
    """Turn a JSON object into a typed request; extra keys are ignored.

    Unless ``strict``, text stands for numbers and booleans too, as in the fields of a form.
    """
    for name in required_names(shape):
        if name not in body:
            return missing_parameter(name)
    try:
        return msgspec.convert(body, shape, strict=strict)
    except msgspec.ValidationError as error:
        return _invalid_parameter(str(error), body, shape, strict=strict)


def fingerprint(path: str, body: JsonObject) -> bytes:
    """Return the SHA-256 of a request's path and canonical body, which an Idempotency-Key is bound to."""
    canonical = msgspec.json.encode(body, order="sorted")
    return hashlib.sha256(path.encode("utf-8", "surrogatepass") + b"\n" + canonical).digest()


@functools.cache
def required_names(shape: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names that every body of this shape has."""
    return tuple(field.encode_name for field in msgspec.structs.fields(shape) if field.required)


def unknown_names(body: JsonObject, shape: type[msgspec.Struct]) -> list[str] | Refusal:
    """Return the names in a body that its shape does not have; they are ignored.

    Refuses one that is probably a known name that was not sent, written otherwise, with ``invalid_parameter``.
    """
    unknown = [name for name in body if name not in shape.__struct_encode_fields__]
    if not unknown:
        return []
    absent = [name for name in shape.__struct_encode_fields__ if name not in body]
    for name in unknown:
        meant = next((known for known in absent if _is_probably(name, known)), None)
        if meant is not None:
            return invalid_parameter(name, f"does not exist here; {meant} does")
    return sorted(unknown)


def _is_probably(name: str, known: str) -> bool:
    """Whether two names differ in case, separators, or one letter: changed, added, omitted, or two interchanged."""
    if len(name) > NAME_CHARS_MAX:
        return False
    one, other = _letters(name), _letters(known)
    if one == other:
        return True
    if min(len(one), len(other)) < LETTERS_MIN or abs(len(one) - len(other)) > 1:
        return False
    same = next((i for i, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), -1)
    if same < 0:
        return True
    one, other = one[same:], other[same:]
    is_interchanged = one[:2] == other[1::-1] and one[2:] == other[2:]
    return is_interchanged or one[1:] == other[1:] or one == other[1:] or one[1:] == other


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _invalid_parameter(message: str, body: JsonObject, shape: type[msgspec.Struct], *, strict: bool) -> Refusal:
    path = _ERROR_PATH.search(message)
    reason = message[: path.start()] if path else message
    param = path.group(1) if path else None
    field = (param or "").partition(".")[0].partition("[")[0]
    missing = re.search(r"missing required field `([^`]+)`", reason)
    if missing:
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return missing_parameter(param)
    # Whether to send mail is no address.
    is_choice = reason.startswith("Expected `bool`")
    own_code = _OWN_CODES.get((param or "").rpartition(".")[2], "invalid_parameter")
    code = "invalid_parameter" if is_choice else own_code
    if param == f"{field}{_ANY_KEY}":
        param = param_of((field, _wrong_key(body, field, shape, strict=strict)))
    if _NUMBER_FOR_TEXT.fullmatch(reason):
        kind = 'decimal string in quotes, such as "10.00"' if code == "invalid_amount" else "string in quotes"
        return Refusal(code=code, message=f"The {param} must be a {kind}, not a JSON number.", param=param)
    unknown = _UNKNOWN_VALUE.fullmatch(reason)
    if param and unknown and (values := _values_of(shape, field)):
        return invalid_parameter(param, f"must be one of {', '.join(values)}, not {unknown[1][:SHOWN_CHARS_MAX]}")
    said = reason[:300].replace("`", "")
    message = f"The parameter {param} is not valid: {said[:1].lower()}{said[1:]}." if param else f"{said}."
    return Refusal(code=code, message=message, param=param)


def _wrong_key(body: JsonObject, field: str, shape: type[msgspec.Struct], *, strict: bool) -> str:
    """Return the first key of the object in a field whose value does not fit."""
    [kind] = [each.type for each in msgspec.structs.fields(shape) if each.encode_name == field]

    def fits(pair: tuple[str, object]) -> bool:
        try:
            msgspec.convert(dict([pair]), kind, strict=strict)
        except msgspec.ValidationError:
            return False
        return True

    pairs: dict[str, object] = body[field]
    return next(pair[0] for pair in pairs.items() if not fits(pair))


def _values_of(shape: type[msgspec.Struct], field: str) -> list[str]:
    """Return the values that an enumeration in a field of ``shape`` may have."""
    waiting: list[Any] = [msgspec.json.schema_components((shape,))[1][shape.__name__]["properties"][field]]
    found: list[str] = []
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            found += part.get("enum", ())
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return found


def _invalid(message: str) -> Refusal:
    return Refusal(code="invalid_json", message=message)


def _checked(value: JsonObject) -> JsonObject | Refusal:
    """Check every string and the depth of a body, iteratively, since it may be nested deeply."""
    waiting: list[tuple[Any, int]] = [(value, 1)]
    while waiting:
        part, depth = waiting.pop()
        if isinstance(part, str):
            if not _storable(part):
                return _invalid("The body has a NUL character or a lone surrogate.")
        elif isinstance(part, dict | list):
            if depth > NESTING_MAX:
                return _invalid("The body is nested too deeply.")
            if isinstance(part, dict):
                waiting.extend((key, depth) for key in part)
                waiting.extend((member, depth + 1) for member in part.values())
            else:
                waiting.extend((member, depth + 1) for member in part)
    return value


def _storable(text: str) -> bool:
    if "\0" in text:
        return False
    try:
        # Encoding fails at lone surrogates, and is faster than a check of each character.
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _repeated(pairs: list[tuple[str, Any]]) -> str:
    return Counter(name for name, _ in pairs).most_common(1)[0][0]


def _unique_keys(pairs: list[tuple[str, Any]]) -> JsonObject:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Refused(f"The body has the key {shown(_repeated(pairs))} more than once.")
    return found


def _bounded_int(digits: str) -> int:
    if len(digits) > _INTEGER_DIGITS_MAX or not -(2**63) <= (number := int(digits)) < 2**63:
        raise _Refused("The body has an integer of more than 64 bits.")
    return number


def _finite_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _Refused("The body has a number out of range.")
    return number


def _no_constant(name: str) -> float:
    raise _Refused(f"{name} is not JSON.")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_int=_bounded_int,
    parse_float=_finite_float,
    parse_constant=_no_constant,
)
