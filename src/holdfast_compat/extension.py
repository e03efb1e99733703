"""What the APIs for other clients add to the front end: endpoints, the form of Replicate's errors, webhooks."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from holdfast.http.kit.extensions import Extension, routes_below
from holdfast_compat.replicate.problems import PROBLEMS
from holdfast_compat.replicate.schemas import BASE, webhook_body

EXTENSION: Final = Extension(
    name="compat",
    routes=(
        *routes_below("holdfast_compat.openai"),
        *routes_below("holdfast_compat.replicate"),
        *routes_below("holdfast_compat.mcp"),
    ),
    examples=files("holdfast_compat") / "responses.json",
    bases=(BASE,),
    error_form=PROBLEMS,
    webhook_bodies={"prediction": webhook_body},
)
