"""Parsing URLs: the short way gives what httpx2 gives."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.providers.outbound.urls import URL_MAX_CHARS, Target, _normalized, parse_url

PIECES = st.sampled_from(
    ["a", "b.c", "example.com", "1.2.3.4", "256.1.1.1", "01.2.3.4", "1.2.3", "0x7f.1", "-", "_", "A", "é", " ",
     "%20", "%2f", "%zz", "%", "/", "//", "/.", "/..", "/...", ".", "?", "&x=1", "#", ":80", ":443", ":0", ":65536",
     ":8080", ":", "@", "user:pw@", "[::1]", "[", "]", "'", '"', "\\", "|", "\n", "\0", "xn--a", "https://",
     "http://", "ftp://"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=8).map("".join)


@given(st.sampled_from(["https://", "http://", ""]), TEXTS)
@example("https://", "a.example:443/x?y")
@example("http://", "127.0.0.1:8080/files/7.png?a=%2F&b=/?")
@example("https://", "a.example/a/../b")
@example("https://", "a.example")
def test_a_url_is_parsed_as_by_httpx2(scheme: str, rest: str) -> None:
    url = scheme + rest
    try:
        parsed = parse_url(url)
    except ValueError:
        # What is refused is refused without the short way too, or has a port that does not exist.
        with suppress(ValueError):
            assert not 1 <= _normalized(url, None).port <= 65535
        return
    assert parsed == _normalized(url, None)


def test_a_redirect_is_relative_to_the_url_before() -> None:
    base = parse_url("https://a.example:8443/x/y?z")
    for url, path in (("/b", b"/b"), ("b", b"/x/b"), ("../b?c", b"/b?c"), ("?d", b"/x/y?d"), ("", b"/x/y?z")):
        assert parse_url(url, base) == Target("https", "a.example", 8443, "a.example:8443", path)
    assert parse_url("//b.example/c", base) == Target("https", "b.example", 443, "b.example", b"/c")
    assert parse_url("http://b.example:443/c", base) == Target("http", "b.example", 443, "b.example:443", b"/c")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://a.example/" + "a" * URL_MAX_CHARS, "too long"),
        ("https://u:p@a.example/", "credentials"),
        ("https://a.example:65536/", "port"),
        ("https://a.example:0/", "port"),
        ("https://[::1/", "malformed"),
    ],
)
def test_the_reason_of_a_refusal(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_url(url)
