"""The input of a prediction as the model's schema names its fields, and as these take a data URI.

What a client's own words say is sent on by the model's: a number of images, a size, a duration. Everything else
stays as it is, so that the schema refuses it by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from holdfast.ledger.catalog.models import Model
from holdfast.ledger.refusals import Refusal
from holdfast_compat.model_words import Measure, SentInput, file_forms, in_words_of

_WORDS: Final[dict[str, Measure]] = {"num_outputs": "count", "duration": "seconds", "size": "size"}
BELOW: Final = ("input",)
"""Where the body has the input."""
_DATA: Final = re.compile(r"data:[^,]{0,200};base64,", re.ASCII)


def native_input(model: Model, given: Mapping[str, object]) -> SentInput | Refusal:
    """Return the input for the native API, with a data URI as its base64 where the field takes that.

    ``given`` is not changed. Refuses with ``invalid_parameter``.
    """
    plain = {name: _plain(model, name, value) for name, value in given.items()}
    return in_words_of(model, plain, _WORDS, below=BELOW)


def _plain(model: Model, name: str, value: object) -> object:
    """Return a value as the field takes it."""
    match = _DATA.match(value) if isinstance(value, str) else None
    field = None if match is None else model.schema.field(name)
    if match is None or field is None or "base64" not in file_forms(field):
        return value
    return match.string[match.end() :]
