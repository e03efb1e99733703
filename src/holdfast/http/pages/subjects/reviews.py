"""Reviews: the open ones, and one with its outputs and the decision."""

from __future__ import annotations

from holdfast.http.endpoints.operators.accounts.reviews import (
    ReviewRecord,
    list_reviews,
    read_review,
)
from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ViewResult, ViewTable, Visit
from holdfast.ledger.refusals import Refusal

view = ViewTable()


@view("/ops/reviews")
async def reviews(visit: Visit) -> ViewResult:
    """The open reviews, oldest first."""
    return Html("reviews.html", {"reviews": await visit.read_list(list_reviews)}, is_live=True)


@view("/ops/reviews/{review_case_id}")
async def review(visit: Visit) -> ViewResult:
    """One review."""
    found = await visit.read(read_review, ReviewRecord, path=visit.path)
    return found if isinstance(found, Refusal) else Html("review.html", {"review": found}, is_live=True)
