"""The catalog file: its values, its version, and the report of its faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.ledger.catalog.catalog import CatalogFault, load_catalog, parse_catalog
from holdfast.ledger.catalog.models import Catalog
from holdfast.providers.media.kinds import kind_rules

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["prompt"],
    "properties": {
        "prompt": {"type": "string", "minLength": 1, "maxLength": 100},
        "n": {"type": "integer", "minimum": 1, "maximum": 4, "default": 1},
        "quality": {"enum": ["low", "high"], "default": "low"},
    },
}

CATALOG = """
[catalog]
schema = 1
currency = "USD"

[defaults]
markup_multiplier = "1.20"
created = "2026-11-01"
deadlines = { run_s = 100 }

[providers.gpu]
kind = "cog"
url = "http://gpu.internal:5000/"
secret = "a secret of the gpu box"

[[models]]
id = "gpu/image-1"
modality = "image"
type = "async"
pricing = { mode = "per_image", unit_price = "0.010" }
units = { n = "n" }
upstream = { provider = "gpu", model = "poster" }
input_schema = "image-1.json"
deadlines = { dispatch_s = 30 }
"""

HOSTED = """
[providers.hosted]
kind = "replicate"
token = "r8_0123456789"
secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""


def read(schemas: dict[str, object] | None = None) -> Callable[[str], str]:
    """Return a reader of schemas in memory; an unknown name is a KeyError, like a missing file."""
    known = {"image-1.json": SCHEMA, **(schemas or {})}
    return lambda name: json.dumps(known[name])


def parse(text: str = CATALOG, schema: object = SCHEMA) -> Catalog:
    return parse_catalog(text, read_schema=read({"image-1.json": schema}), kinds=kind_rules())


def faults_of(text: str, schema: object = SCHEMA) -> tuple[str, ...]:
    with pytest.raises(CatalogFault) as caught:
        parse(text, schema)
    assert str(caught.value) == "\n".join(caught.value.lines)
    return caught.value.lines


def test_a_model_is_read_with_defaults_filled_up_key_by_key() -> None:
    model = parse().models["gpu/image-1"]
    assert model.modality == "image"
    assert model.type == "async"
    assert model.status == "active"
    assert model.created == 1793491200
    assert model.owned_by == "gpu"
    assert model.markup_multiplier == "1.20"
    assert (model.deadlines.run_s, model.deadlines.dispatch_s, model.deadlines.hosting_s) == (100, 30, 300)
    assert model.hosting.mode == "rehost"
    assert model.input_schema == SCHEMA
    assert model.schema.validator.is_valid({"prompt": "x"})
    assert not model.schema.validator.is_valid({"prompt": ""})


def test_a_provider_is_read_and_never_shows_its_secret() -> None:
    provider = parse().providers["gpu"]
    assert provider.url == "http://gpu.internal:5000"
    assert provider.secret == "a secret of the gpu box"
    assert provider.concurrency == 16
    assert "a secret" not in repr(provider)
    assert "a secret" not in repr(list(provider.__rich_repr__()))
    assert "a secret" not in repr(parse().providers)


def test_a_hosted_provider_is_read_and_never_shows_its_token() -> None:
    hosted = parse(CATALOG + HOSTED).providers["hosted"]
    assert (hosted.url, hosted.polls, hosted.callback_bytes_max) == ("https://api.replicate.com", True, 1024 * 1024)
    assert "r8_" not in repr(hosted)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('token = "r8_0123456789"', "", "provider hosted: token is missing"),
        ("r8_0123456789", "r8 0123456789", "provider hosted: token must be 8 to 500 printable characters"),
        ("r8_0123456789", "r8_0", "provider hosted: token must be 8 to 500 printable characters"),
        ("whsec_", "", "provider hosted: secret and previous_secrets must be whsec_"),
        (
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "c2hvcnQ",
            "provider hosted: secret and previous_secrets must be whsec_",
        ),
        ('token = "r8', 'polls = true\ntoken = "r8', "provider hosted: polls is not a known key"),
        ('token = "r8', 'callback_bytes_max = 1\ntoken = "r8', "callback_bytes_max must be an integer from 65536"),
    ],
)
def test_a_fault_of_a_hosted_provider_shows_no_secret(old: str, new: str, fault: str) -> None:
    assert old in HOSTED
    reported = "\n".join(faults_of(CATALOG + HOSTED.replace(old, new)))
    assert fault in reported
    assert "0123456789" not in reported
    assert "MfKQ" not in reported


ELSEWHERE = """
[providers.elsewhere]
kind = "replicate"
token_env = "ELSEWHERE_TOKEN"
secret_file = "secrets/elsewhere"
previous_secrets_env = ["ELSEWHERE_BEFORE"]
"""
SECRET, BEFORE = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_YW4tZXhhbXBsZS1zZWNyZXQtb2YtMzItYnl0ZXMu"
VARIABLES = {"ELSEWHERE_TOKEN": "r8_0123456789", "ELSEWHERE_BEFORE": f" {BEFORE} "}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A catalog with secrets in files and variables."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "elsewhere").write_text(SECRET + "\n")
    (tmp_path / "secrets" / "elsewhere").chmod(0o640)
    (tmp_path / "image-1.json").write_text(json.dumps(SCHEMA))
    file = tmp_path / "catalog.toml"
    file.write_text(CATALOG.replace('secret = "a secret of the gpu box"', "") + ELSEWHERE)
    return file


def test_secrets_are_read_from_variables_and_files(elsewhere: Path) -> None:
    catalog = load_catalog(elsewhere, kind_rules(), VARIABLES)
    provider = catalog.providers["elsewhere"]
    assert (provider.token, provider.secret, provider.previous_secrets) == ("r8_0123456789", SECRET, (BEFORE,))


def test_the_files_with_secrets_are_named(elsewhere: Path) -> None:
    secret = elsewhere.parent / "secrets" / "elsewhere"
    assert load_catalog(elsewhere, kind_rules(), VARIABLES).secret_files == (secret,)
    text = elsewhere.read_text()
    elsewhere.write_text(text.replace('token_env = "ELSEWHERE_TOKEN"', 'token = "r8_0123456789"'))
    assert load_catalog(elsewhere, kind_rules(), VARIABLES).secret_files == (secret, elsewhere)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("ELSEWHERE_TOKEN", "r8_0123456789", "token_env names a variable that is not set"),
        ('"secrets/elsewhere"', '"whsec_0123456789"', "secret_file names a file that cannot be read: No such file"),
        ('"secrets/elsewhere"', '"secrets"', "secret_file names a file that cannot be read: Is a directory"),
        ('token_env = "ELSEWHERE_TOKEN"', 'token_env = ""', "token_env must be a string that is not empty"),
        ('["ELSEWHERE_BEFORE"]', '["0123456789"]', "previous_secrets_env names a variable that is not set"),
        ('["ELSEWHERE_BEFORE"]', '"0123456789"', "previous_secrets_env must be a list"),
        ("token_env", 'token = "r8_0123456789"\ntoken_env', "token and token_env are the same setting"),
        ('kind = "replicate"', 'kind = "studio"', "token_env is not a known key of kind studio"),
    ],
)
def test_a_secret_that_cannot_be_read_is_a_fault_that_does_not_show_it(
    elsewhere: Path, old: str, new: str, fault: str
) -> None:
    text = elsewhere.read_text()
    assert old in text
    elsewhere.write_text(text.replace(old, new))
    with pytest.raises(CatalogFault) as caught:
        load_catalog(elsewhere, kind_rules(), VARIABLES)
    assert f"provider elsewhere: {fault}" in str(caught.value)
    assert "0123456789" not in str(caught.value)


@pytest.mark.parametrize(
    ("origin", "fault"),
    [
        ("http://files.internal:9000", None),
        ("https://10.0.0.7/", None),
        ("files.internal", "must be an http or https address"),
        ("file:///etc", "must be an http or https address"),
        ("http://a@files.internal", "must not contain a user or password"),
        ("http://files.internal/a", "must not have a path"),
    ],
)
def test_the_origins_of_a_providers_inputs_are_addresses_without_a_path(origin: str, fault: str | None) -> None:
    text = CATALOG.replace('kind = "cog"', f'kind = "cog"\ninput_origins = ["{origin}"]')
    if fault is None:
        assert parse(text).providers["gpu"].input_origins == (origin,)
    else:
        assert faults_of(text) == (f"provider gpu: input_origins {fault}",)


def test_a_container_is_polled_as_the_catalog_states() -> None:
    gpu = parse().providers["gpu"]
    assert (gpu.polls, gpu.callback_bytes_max, gpu.token) == (None, 8 * 1024 * 1024, None)
    for word, expected in (("true", True), ("false", False)):
        text = CATALOG.replace('kind = "cog"', f'kind = "cog"\npolls = {word}\ntoken = "a-gpu-token"')
        assert (parse(text).providers["gpu"].polls, parse(text).providers["gpu"].token) == (expected, "a-gpu-token")
    assert "provider gpu: polls must be true or false" in "\n".join(
        faults_of(CATALOG.replace('kind = "cog"', 'kind = "cog"\npolls = "yes"'))
    )


def test_the_studio_needs_no_address() -> None:
    catalog = parse(CATALOG.replace('"cog"', '"studio"').replace('url = "http://gpu.internal:5000/"', ""))
    assert catalog.providers["gpu"].url is None
    assert catalog.providers["gpu"].concurrency == 4


EXAMPLE = 'example_input = { prompt = "a hill", n = 2 }'


def test_an_example_is_priced_when_the_catalog_is_read() -> None:
    catalog = parse(CATALOG + EXAMPLE)
    assert catalog.models["gpu/image-1"].example_input == {"prompt": "a hill", "n": 2}
    assert catalog.examples["gpu/image-1"].basis == "per_image: 2 x 0.012"
    assert catalog.examples["gpu/image-1"].catalog_version == catalog.version == parse().version
    assert parse().examples == {}


@pytest.mark.parametrize(
    ("example", "fault"),
    [
        ("{ n = 2 }", "example_input is refused: input.prompt is required."),
        ('{ prompt = "a", n = 9, size = 1 }', "example_input is refused: input.n must be at most 4; input.size is"),
        ("{ prompt = 2026-11-01 }", "example_input is refused: input.prompt"),
        ('{ prompt = "a", n = inf }', "example_input is refused: input.n"),
        ('"a hill"', "example_input must be a table, not 'a hill'"),
        ('{ prompt = "a" }\ndescription = ""', "description must be a string that is not empty"),
    ],
)
def test_an_example_that_no_customer_could_send_is_a_fault(example: str, fault: str) -> None:
    (line,) = faults_of(f"{CATALOG}example_input = {example}")
    assert line.startswith(f"model gpu/image-1: {fault}")


def test_an_example_without_a_price_is_a_fault() -> None:
    tiers = 'unit_price = "0.01", tiers = [{ when = { quality = "high" }, unit_price = "1" }]'
    text = CATALOG.replace('unit_price = "0.010"', tiers)
    (line,) = faults_of(text + EXAMPLE)
    assert (
        line
        == "model gpu/image-1: example_input is refused: The model 'gpu/image-1' has no price for this quality."
    )
    assert parse(text + EXAMPLE.replace("n = 2", 'quality = "high"')).examples


def test_what_is_not_described_is_listed() -> None:
    message = {"properties": {"role": {"$ref": "#/$defs/role"}, "content": {"type": "string"}}}
    schema = {
        "type": "object",
        "properties": {
            "prompt": {"type": "string", "description": "What it shows."},
            "n": {"$ref": "#/$defs/n"},
            "messages": {"type": "array", "items": {"type": "object", **message}},
        },
        "$defs": {
            "n": {"type": "integer", "minimum": 1, "maximum": 2, "description": "How many."},
            "role": {"type": "string"},
        },
    }
    model = parse(schema=schema).models["gpu/image-1"]
    assert model.undescribed == [
        "description",
        "example_input",
        "input.messages",
        "input.messages.role",
        "input.messages.content",
    ]
    described = parse(CATALOG + 'description = "Pictures."\nexample_input = {}', schema).models["gpu/image-1"]
    assert described.undescribed[0] == "input.messages"


def test_the_shipped_models_leave_nothing_undescribed() -> None:
    shipped = load_catalog(None, kind_rules())
    assert {model.id: model.undescribed for model in shipped.models.values() if model.undescribed} == {}
    assert shipped.examples.keys() == shipped.models.keys()


def test_a_schema_may_be_part_of_the_catalog_file() -> None:
    number = '{ type = "integer", minimum = 1, maximum = 2 }'
    inline = f'input_schema = {{ type = "object", properties = {{ n = {number} }} }}'
    model = parse(CATALOG.replace('input_schema = "image-1.json"', inline)).models["gpu/image-1"]
    assert model.schema.validator.is_valid({"n": 2})
    assert not model.schema.validator.is_valid({"n": 3})


def test_models_are_in_file_order() -> None:
    second = CATALOG[CATALOG.index("[[models]]") :].replace("gpu/image-1", "a-first-by-name")
    assert list(parse(CATALOG + second).models) == ["gpu/image-1", "a-first-by-name"]


def test_the_version_ignores_comments_blanks_and_the_order_of_keys() -> None:
    lines = CATALOG.strip().splitlines()
    models = lines.index("[[models]]")
    turned = [*lines[: models + 1], *reversed(lines[models + 1 :])]
    text = "\n\n".join(f"{line}  # a remark" for line in turned)
    turned_schema = {key: SCHEMA[key] for key in reversed(SCHEMA)}
    assert text != CATALOG
    assert parse(text, turned_schema).version == parse().version
    assert parse().version.startswith("cat_")
    assert len(parse().version) == 20


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"0.010"', '"0.011"'),
        ('"1.20"', '"1.21"'),
        ("run_s = 100", "run_s = 101"),
        ('model = "poster"', 'model = "poster-2"'),
        ('pricing = { mode = "per_image",', 'pricing = { minimum = "0.01", mode = "per_image",'),
    ],
)
def test_the_version_changes_with_what_is_sold(old: str, new: str) -> None:
    assert old in CATALOG
    assert parse(CATALOG.replace(old, new)).version != parse().version


def test_the_version_changes_with_a_schema() -> None:
    assert parse(schema={**SCHEMA, "title": "Another"}).version != parse().version


def test_the_version_does_not_depend_on_a_secret() -> None:
    assert parse(CATALOG.replace("a secret of the gpu box", "quite another secret")).version == parse().version


def test_all_faults_are_reported_at_once_with_their_entry_and_key() -> None:
    lines = faults_of(
        """
[catalog]
schema = 2
curency = "USD"
[providers.gpu]
kind = "gog"
[providers.cloud]
kind = "replicate"
url = "ftp://cloud.example"
secret = "short"
speed = 3
[[models]]
id = "gpu/image-1"
modality = "picture"
type = "async"
created = "yesterday"
pricing = { mode = "per_image", unit_price = 0.01, price = "1" }
markup_multiplier = "1,2"
upstream = { provider = "absent" }
input_schema = "missing.json"
colour = "red"
[[models]]
id = "no good"
type = "async"
"""
    )
    reported = "\n".join(lines)
    for expected in (
        "[catalog]: schema must be an integer from 1 to 1, not 2",
        "[catalog]: curency is not a known key",
        "provider gpu: kind must be one of studio, cog, replicate, not 'gog'",
        "provider cloud: url must be an http or https address",
        "provider cloud: secret must be at least 8 characters long",
        "provider cloud: speed is not a known key",
        "model gpu/image-1: modality must be one of llm, image, video, audio, not 'picture'",
        "model gpu/image-1: created must be a date YYYY-MM-DD, not 'yesterday'",
        'model gpu/image-1: pricing: unit_price must be a string such as "0.05"',
        "model gpu/image-1: pricing: price is not a known key",
        "model gpu/image-1: markup_multiplier must be a string",
        "model gpu/image-1: upstream: provider 'absent' is not one of [providers]",
        "model gpu/image-1: input_schema 'missing.json' cannot be read",
        "model gpu/image-1: colour is not a known key",
        "model no good: id must be up to four names of letters, digits and . _ : -, joined by /, not 'no good'",
        "model no good: pricing is missing",
        "model no good: input_schema is missing",
    ):
        assert expected in reported
    assert "short" not in reported
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('units = { n = "n" }', 'units = { n = "count" }', "units: n: the input schema has no field 'count'"),
        ('units = { n = "n" }', 'units = { n = "prompt" }', "units: n: the schema must give 'prompt' a minimum"),
        ('units = { n = "n" }', 'units = { seconds = "n" }', "units: per_image is measured by no fields"),
        ('"per_image"', '"per_second"', "units: per_second is measured by seconds"),
        ('unit_price = "0.010"', 'unit_price = "-1"', "pricing: unit_price must be a string"),
        ('unit_price = "0.010"', 'unit_price = "1e3"', "pricing: unit_price must be a string"),
        ('unit_price = "0.010"', 'input_price = "1"', "pricing: input_price is not used by per_image"),
        ('unit_price = "0.010"', 'input_price = "1"', "pricing: unit_price is missing"),
        ('"1.20"', '"0.00"', "markup_multiplier must be a string above zero"),
        (
            'unit_price = "0.010"',
            'unit_price = "0.01", unit_size = 5',
            "pricing: unit_size must be 1 for per_image",
        ),
        (
            'unit_price = "0.010"',
            'unit_price = "0.01", tiers = [{ when = { quality = "hgih" }, unit_price = "1" }]',
            "tiers 1: when.quality has a value that the input schema does not allow: 'hgih'",
        ),
        (
            'unit_price = "0.010"',
            'unit_price = "0.01", tiers = [{ when = { colour = "red" }, unit_price = "1" }]',
            "pricing: tiers 1: when.colour is not a field",
        ),
        (
            'unit_price = "0.010"',
            'unit_price = "0.01", tiers = ['
            '{ when = { n = 1 }, unit_price = "1" }, { when = { n = 1 }, unit_price = "2" }]',
            "pricing: tiers 2: repeats the condition",
        ),
        ('"http://gpu.internal:5000/"', '"http://user:pass@gpu/"', "provider gpu: url must not contain a user"),
        ('"http://gpu.internal:5000/"', '"http://gpu:99999/"', "provider gpu: url is not a URL"),
        ("run_s = 100", "run_s = 0", "deadlines: run_s must be an integer from 1"),
        ("run_s = 100", "runs = 1", "deadlines: runs is not a known key"),
    ],
)
def test_a_fault_names_its_place_and_value(old: str, new: str, fault: str) -> None:
    assert old in CATALOG
    assert any(fault in line for line in faults_of(CATALOG.replace(old, new)))


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "wat"}, "is not a valid JSON Schema"),
        ({"type": "array"}, "must describe an object"),
        ([], "must be a JSON object"),
        ({"type": "object", "properties": {"n": {"$ref": "https://elsewhere.example/n"}}}, "refers outside itself"),
        ({"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}, "which is not in it"),
        (
            {
                "type": "object",
                "properties": {"n": {"$ref": "#/$defs/n"}},
                "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}}},
            },
            "refers to itself",
        ),
        (
            {"type": "object", "properties": {"n": {"pattern": "("}}},
            "is not a valid JSON Schema",
        ),
        (
            {"type": "object", "properties": {"n": {"type": "integer", "maximum": 4, "default": 5}}},
            "has a default that breaks its own rules: n",
        ),
    ],
)
def test_a_schema_that_cannot_validate_inputs_is_refused(schema: object, fault: str) -> None:
    assert any("model gpu/image-1: input_schema" in line and fault in line for line in faults_of(CATALOG, schema))


def test_two_models_cannot_have_one_id() -> None:
    twice = CATALOG + CATALOG[CATALOG.index("[[models]]") :]
    assert faults_of(twice) == ("model gpu/image-1: id is used by another model",)


def test_a_price_above_the_largest_amount_is_refused() -> None:
    dear = CATALOG.replace('"0.010"', '"999999"').replace('"1.20"', '"9"')
    text_priced = dear.replace("per_image", "per_character").replace('n = "n"', 'text = "prompt"')
    assert any("more than the ledger can hold" in line for line in faults_of(text_priced))
    assert parse(dear).models


def test_what_is_not_toml_or_has_no_models_is_refused() -> None:
    assert "is not TOML" in faults_of("[catalog")[0]
    assert faults_of("") == ("catalog: models must list at least one model",)


def test_a_sync_model_needs_no_configured_provider() -> None:
    catalog = parse(CATALOG.replace('"async"', '"sync"').replace('provider = "gpu"', 'provider = "elsewhere"'))
    assert catalog.models["gpu/image-1"].upstream.provider == "elsewhere"


def test_a_catalog_is_loaded_with_the_schemas_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(CATALOG, encoding="utf-8")
    (tmp_path / "image-1.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    assert load_catalog(tmp_path / "mine.toml", kind_rules()).version == parse().version


@pytest.mark.parametrize("name", ["../image-1.json", "/etc/hostname"])
def test_a_schema_outside_the_catalogs_folder_is_not_read(tmp_path: Path, name: str) -> None:
    below = tmp_path / "below"
    below.mkdir()
    (tmp_path / "image-1.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    (below / "mine.toml").write_text(CATALOG.replace("image-1.json", name), encoding="utf-8")
    with pytest.raises(CatalogFault, match="must lie beside the catalog file"):
        load_catalog(below / "mine.toml", kind_rules())


def test_a_missing_file_is_a_fault_not_a_crash(tmp_path: Path) -> None:
    with pytest.raises(CatalogFault, match="cannot be read"):
        load_catalog(tmp_path / "none.toml", kind_rules())
    (tmp_path / "mine.toml").write_text(CATALOG, encoding="utf-8")
    with pytest.raises(CatalogFault, match=r"input_schema 'image-1\.json' cannot be read"):
        load_catalog(tmp_path / "mine.toml", kind_rules())


OPERATORS_CATALOG = """
[catalog]
schema = 1
currency = "USD"
credit_quantum = "0.000001"

[defaults]
markup_multiplier = "1.20"
status = "active"
hosting = { mode = "rehost", retention_hours = 48, max_bytes = 1000000 }
deadlines = { dispatch_s = 45, run_s = 600 }
charge = { on = ["succeeded"], overrun = "cap" }

[[models]]
id = "studio/still"
modality = "image"
type = "async"
created = "2026-10-05"
owned_by = "studio"
capabilities = ["text_to_image", "seed"]
pricing = { mode = "per_image", unit = "image", unit_price = "0.020", minimum = "0.030" }
units = { n = "n" }
upstream = { provider = "studio", model = "poster" }
input_schema = "shapes/still.json"

[[models]]
id = "studio/reel"
modality = "video"
type = "async"
created = "2026-10-06"
owned_by = "studio"
capabilities = ["text_to_video"]
pricing = { mode = "per_second", unit = "second", unit_price = "0.040", \
tiers = [ { when = { quality = "high" }, unit_price = "0.070" } ] }
units = { seconds = "n" }
upstream = { provider = "studio", model = "clip" }
input_schema = "shapes/still.json"
""".replace("\\\n", "")


def operators_catalog(folder: Path, text: str = OPERATORS_CATALOG) -> Catalog:
    """Write the operator's file and its schema to disk, and read it from there."""
    (folder / "shapes").mkdir(exist_ok=True)
    (folder / "shapes" / "still.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    return load_catalog(folder / "mine.toml", kind_rules())


def test_an_operators_catalog_is_read_with_all_its_keys(tmp_path: Path) -> None:
    catalog = operators_catalog(tmp_path)
    still, reel = catalog.models.values()
    assert (still.hosting.retention_s, still.hosting.bytes_max) == (48 * 3600, 1_000_000)
    assert (still.deadlines.dispatch_s, still.deadlines.run_s) == (45, 600)
    assert (still.upstream.provider, still.upstream.model) == ("studio", "poster")
    assert reel.pricing.tiers[0].when == {"quality": "high"}
    assert reel.pricing.tiers[0].unit_price == "0.070"


def test_the_studio_needs_no_provider_table(tmp_path: Path) -> None:
    implied = operators_catalog(tmp_path)
    configured = operators_catalog(tmp_path, OPERATORS_CATALOG + '[providers.studio]\nkind = "studio"\n')
    assert implied.providers["studio"] == configured.providers["studio"]
    assert implied.providers["studio"].url is None
    assert implied.version == configured.version
    assert "studio" not in parse().providers


def test_a_configured_studio_replaces_the_in_tree_one(tmp_path: Path) -> None:
    table = '[providers.studio]\nkind = "studio"\nurl = "http://studio.example"\nsecret = "long enough"\n'
    assert operators_catalog(tmp_path, OPERATORS_CATALOG + table).providers["studio"].url == "http://studio.example"


def test_a_cog_server_needs_only_a_url_and_a_secret(tmp_path: Path) -> None:
    table = '[providers.box]\nkind = "cog"\nurl = "http://box.example:5000"\nsecret = "box-secret"\n'
    text = OPERATORS_CATALOG.replace('provider = "studio", model = "poster"', 'provider = "box"') + table
    catalog = operators_catalog(tmp_path, text)
    box = catalog.providers["box"]
    assert (box.url, box.secret) == ("http://box.example:5000", "box-secret")
    assert (box.concurrency, box.submit_timeout_s, box.polls) == (16, 15, None)
    assert catalog.models["studio/still"].upstream.provider == "box"
    assert "studio" in catalog.providers


def test_the_size_of_outputs_is_limited_under_either_name(tmp_path: Path) -> None:
    other = operators_catalog(tmp_path, OPERATORS_CATALOG.replace("max_bytes", "bytes_max"))
    assert other.version == operators_catalog(tmp_path).version


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"0.000001"', '"0.01"', "[catalog]: credit_quantum must be one of 0.000001"),
        ('["succeeded"]', '["failed"]', 'charge: on must be ["succeeded"]'),
        ('["succeeded"]', '["succeeded", "failed"]', 'charge: on must be ["succeeded"]'),
        ('["succeeded"]', "[]", 'charge: on must be ["succeeded"]'),
        ('"cap"', '"bill"', "charge: overrun must be one of cap"),
        ('overrun = "cap"', 'overun = "cap"', "charge: overun is not a known key"),
        (
            "max_bytes = 1000000",
            "max_bytes = 1, bytes_max = 2",
            "hosting: max_bytes and bytes_max are the same setting",
        ),
    ],
)
def test_settings_that_the_service_does_not_support_are_refused(
    tmp_path: Path, old: str, new: str, fault: str
) -> None:
    assert old in OPERATORS_CATALOG
    with pytest.raises(CatalogFault) as caught:
        operators_catalog(tmp_path, OPERATORS_CATALOG.replace(old, new))
    assert any(fault in line for line in caught.value.lines)


def test_the_shipped_catalog_has_no_faults() -> None:
    catalog = load_catalog(None, kind_rules())
    assert list(catalog.models) == [
        "gateway/chat-1",
        "studio/image-1",
        "studio/edit-1",
        "studio/tone-1",
        "studio/clip-1",
    ]
    assert list(catalog.providers) == ["studio"]
    assert {model.modality for model in catalog.models.values()} == {"llm", "image", "audio", "video"}
    for model in catalog.models.values():
        assert model.status == "active"
        assert model.input_schema["additionalProperties"] is False
        assert model.type == ("sync" if model.modality == "llm" else "async")
        assert model.created > 0
        assert model.owned_by
        assert len(model.tiers) == len(model.pricing.tiers)
