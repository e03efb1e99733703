"""One input to one model: its checks, its price, and the terms of a task created from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple, cast

from holdfast.ledger.catalog.input_files import InputFile, addresses_of, name_files, with_links
from holdfast.ledger.catalog.models import Model
from holdfast.ledger.catalog.pricing import basis_of, choose_tariff, price_micro
from holdfast.ledger.catalog.terms import Terms
from holdfast.ledger.plain_json import NotPlain, canonical_json, plain_copy
from holdfast.ledger.refusals import VIOLATIONS_MAX, Refusal, Violation, invalid_input

_PUBLIC = "must be the id of an uploaded file, or an address that is public and https"


class PricedInput(NamedTuple):
    """An input with its defaults filled in, the terms it is priced at, and the files that it names."""

    input: dict[str, object]
    terms: Terms
    files: tuple[InputFile, ...] = ()


def price_input(
    model: Model,
    catalog_version: str,
    input: object,  # noqa: A002 - the API's name
    *,
    base_url: str | None = None,
    is_public: Callable[[str], bool] | None = None,
    input_origins: Sequence[str] = (),
) -> PricedInput | Refusal:
    """Price ``input`` for a model of this catalog, disabled or not, without changing it.

    Refuses: 1. ``invalid_input`` (not an object, beyond a limit, or invalid under the model's schema once defaults
    are filled in, or with an address that is not allowed; the message lists the violations and repeats no value);
    2. ``quote_unavailable`` (no tier has a price for this input).
    """
    if not isinstance(input, dict):
        return _invalid([Violation((), "must be an object")])
    try:
        given = cast(dict[str, object], plain_copy(input))
    except NotPlain as fault:
        return _invalid([Violation(fault.path, fault.reason)])
    model.schema.fill(given)
    links = model.link_fields.links_of(given)
    files = name_files(given, links, base_url) if links else ()
    violations = model.schema.violations(with_links(given, files) if files else given)
    if links and not violations and is_public is not None:
        addresses = addresses_of(links, (*input_origins, *((base_url,) if base_url else ())))
        refused = (path for path, address in addresses.items() if not is_public(address))
        violations = [Violation(tuple(map(str, path)), _PUBLIC) for path in islice(refused, VIOLATIONS_MAX)]
    if violations:
        return _invalid(violations)
    tariff = choose_tariff(model, given)
    if tariff is None:
        fields = model.tier_fields
        return Refusal(
            code="quote_unavailable",
            message=f"The model '{model.id}' has no price for this {' and '.join(fields)}.",
            param=f"input.{next(name for name in fields if name in given)}",
            final=True,
        )
    smallest, estimated, largest = measured = model.meter.measure(given)
    minimum_micro, estimate_micro, maximum_micro = [price_micro(tariff.rate, units) for units in measured]
    terms = Terms(
        model=model.id,
        modality=model.modality,
        catalog_version=catalog_version,
        input_hash=hashlib.sha256(canonical_json(given)).hexdigest(),
        rate=tariff.rate,
        estimated=estimated,
        largest=largest,
        smallest=smallest,
        estimate_micro=estimate_micro,
        minimum_micro=minimum_micro,
        maximum_micro=maximum_micro,
        hold_micro=estimate_micro if model.hold == "estimate" else maximum_micro,
        exact=minimum_micro == maximum_micro,
        basis=basis_of(tariff.rate, estimated),
        provider=model.upstream.provider,
        upstream_model=model.upstream.model,
        provider_quote_hash=tariff.provider_quote_hash,
        hosting=model.hosting,
        deadlines=model.deadlines,
        tolerance_percent=model.charge.tolerance_percent,
        on_mismatch=model.charge.on_mismatch,
    )
    return PricedInput(given, terms, files)


def _invalid(violations: Sequence[Violation]) -> Refusal:
    return invalid_input([each._replace(path=("input", *each.path)) for each in violations])
