"""What a job's headers, cookies and proxy may be: one answer, wherever it is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.model.errors import SettingsError, UsageError
from common.model.job import JobSpec
from common.runtime.request_secrets import (
    check_cookie,
    check_header,
    check_proxy,
    revealed_headers,
    revealed_proxy,
)


@pytest.mark.parametrize(
    "text",
    [
        "x", ": x", "A B: x", "X: \x01ü", "X: a\nb", "X: \udcff", "X: a\x7f",
        "Host: h", "content-length: 1", "Transfer-Encoding: chunked", "CONNECTION: close",
    ],
)  # fmt: skip
def test_a_header_that_cannot_be_sent_is_refused_by_all(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--header"):
        check_header(text)
    with pytest.raises(UsageError, match=r"^--header"):
        revealed_headers(JobSpec(header=(text,)))


@pytest.mark.parametrize("text", ["x", "=x", "a b=x", "a=x;y", "a=\x00", "a(=1", "a=\udcff"])
def test_a_cookie_that_cannot_be_sent_is_refused_by_all(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--cookie"):
        check_cookie(text)
    with pytest.raises(UsageError, match=r"^--cookie"):
        revealed_headers(JobSpec(cookie=(text,)))


@pytest.mark.parametrize(
    "text",
    ["", "h:1", "http://", "http://[::1", "http://h:99999", "http://h:0", "http://h:x",
     "socks4://h:1", "http://h h:1", "http://h\n"],
)  # fmt: skip
def test_a_proxy_that_cannot_be_used_is_refused_by_all(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--proxy"):
        check_proxy(text)
    with pytest.raises(UsageError, match=r"^--proxy"):
        revealed_proxy(JobSpec(proxy=text))


@pytest.mark.parametrize("reference", ["@", "env:", "env:A B", "env:A=B"])
def test_a_reference_that_can_name_nothing_is_refused(reference: str) -> None:
    with pytest.raises(UsageError, match=r"^--header X"):
        check_header(f"X: {reference}")
    with pytest.raises(UsageError, match=r"^--cookie x"):
        check_cookie(f"x={reference}")
    with pytest.raises(UsageError, match=r"^--proxy"):
        check_proxy(reference)


def test_references_are_resolved_where_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("Bearer: abc\n")
    monkeypatch.setenv("SID", "env: is no reference here")
    monkeypatch.setenv("PROXY", "http://u:p@127.0.0.1:3128")
    header, cookie = f"Authorization: @{path}", "sid=env:SID"
    check_header(header)
    check_cookie(cookie)
    check_proxy("env:PROXY")
    spec = JobSpec(header=(header,), cookie=(cookie, "b=2"), proxy="env:PROXY")
    assert revealed_headers(spec) == [
        ("Authorization", "Bearer: abc"),
        ("Cookie", "sid=env: is no reference here; b=2"),
    ]
    assert revealed_proxy(spec) == "http://u:p@127.0.0.1:3128"


def test_what_a_reference_stands_for_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAD", "a\nb")
    with pytest.raises(UsageError, match=r"^--header X"):
        revealed_headers(JobSpec(header=("X: env:BAD",)))
    with pytest.raises(UsageError, match=r"^--proxy"):
        revealed_proxy(JobSpec(proxy="env:BAD"))
    with pytest.raises(SettingsError, match=r"^--cookie x: .*'UNSET_HERE'"):
        revealed_headers(JobSpec(cookie=("x=env:UNSET_HERE",)))
