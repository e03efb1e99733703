"""Poison messages: those whose handling crashed their actor."""

from __future__ import annotations

from typing import Final, get_args

from holdfast.http.endpoints.operators.supervision.poison import PoisonList, list_poison_messages
from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ViewResult, ViewTable, Visit
from holdfast.http.schemas.operators import GROUPS
from holdfast.persistence.records.operator_tables import PoisonState

view = ViewTable()

FILTERS: Final = ("group", "key", "state")


@view("/ops/poison")
async def poison(visit: Visit) -> ViewResult:
    """The messages that the filters select, newest first."""
    values = {
        "messages": await visit.read_list(list_poison_messages, PoisonList, FILTERS),
        "filters": {name: visit.parameter(name) for name in FILTERS},
        "groups": GROUPS,
        "states": get_args(PoisonState),
    }
    return Html("poison.html", values, is_live=True)
