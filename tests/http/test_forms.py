"""Forms: what is read of them, and that none breaks the parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.http.kit.forms import Form, is_form, parse_form
from holdfast.ledger.refusals import Refusal

TYPE = "multipart/form-data; boundary=b"


def part(name: str, content: bytes, *, filename: str | None = None) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--b--\r\n"


def test_a_form_has_texts_lists_and_files() -> None:
    raw = form(
        part("prompt", "ein Leuchtturm — Dämmerung".encode()),
        part("tags[]", b"a"),
        part("tags[]", b"b"),
        part("image", b"\x89PNG\r\n--", filename="x.png"),
    )
    found = parse_form(TYPE, raw)
    assert isinstance(found, Form)
    assert found.fields == {"prompt": "ein Leuchtturm — Dämmerung", "tags": ["a", "b"]}
    assert [(each.name, each.content) for each in found.files] == [("image", b"\x89PNG\r\n--")]


def test_the_boundary_and_the_names_of_files_make_no_difference() -> None:
    one = parse_form(TYPE, form(part("a", b"1"), part("f", b"data", filename="x")))
    raw = form(part("a", b"1"), part("f", b"data", filename="y")).replace(b"--b", b"--other")
    two = parse_form("multipart/form-data; boundary=other", raw)
    three = parse_form(TYPE, form(part("a", b"1"), part("f", b"date", filename="x")))
    assert isinstance(one, Form)
    assert isinstance(two, Form)
    assert isinstance(three, Form)
    assert one.facts == two.facts != three.facts


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        form(part("a", b"1"))[:-4],
        form(part("a", b"1"), part("a", b"2")),
        form(part("a", b"1"), part("a[]", b"2")),
        form(part("a", b"\xff")),
        form(part("a", b"\0")),
        form(*[part(f"a{n}", b"") for n in range(200)]),
        b"--c\r\n\r\n--c--",
    ],
)
def test_what_is_no_form_is_refused(raw: bytes) -> None:
    found = parse_form(TYPE, raw)
    assert isinstance(found, Refusal)
    assert found.code == "invalid_form"


def test_only_forms_are_forms() -> None:
    assert is_form("Multipart/Form-Data; boundary=x")
    assert not is_form("multipart/mixed; boundary=x")
    assert not is_form(None)
    assert isinstance(parse_form("multipart/form-data", form(part("a", b"1"))), Refusal)


_pieces = st.sampled_from(
    [
        b"--b",
        b"--b--",
        b"\r\n",
        b"\n",
        b"Content-Disposition: form-data; name=",
        b'"a"',
        b"; filename=",
        b"\0",
        b"x" * 90,
    ]
)


@given(st.lists(st.one_of(_pieces, st.binary(max_size=20)), max_size=40).map(b"".join), st.text(max_size=30))
def test_nothing_breaks_the_parser(raw: bytes, boundary: str) -> None:
    for content_type in (TYPE, f"multipart/form-data; boundary={boundary}"):
        assert isinstance(parse_form(content_type, raw), Form | Refusal)
