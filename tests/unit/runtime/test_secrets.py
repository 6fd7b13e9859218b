"""Secrets by reference, and how they are hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.model.errors import SettingsError
from common.runtime.secrets import mask_pair, mask_url, reveal


def test_a_literal_is_itself() -> None:
    assert reveal("plain", field="--x", environ={}) == "plain"


def test_a_file_loses_its_last_line_end_only(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b" two\nlines \r\n")
    assert reveal(f"@{path}", field="--x", environ={}) == " two\nlines "


def test_a_variable_is_read_where_the_value_is_used() -> None:
    assert reveal("env:NAME", field="--x", environ={"NAME": "value"}) == "value"


@pytest.mark.parametrize("reference", ["@/no/such/file", "env:UNSET"])
def test_what_cannot_be_resolved_names_the_field(reference: str) -> None:
    with pytest.raises(SettingsError, match=r"^--header X: "):
        reveal(reference, field="--header X", environ={})


def test_a_binary_secret_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not UTF-8"):
        reveal(f"@{path}", field="--x", environ={})


@pytest.mark.parametrize(
    ("text", "separator", "shown"),
    [
        ("Authorization: Bearer x", ":", "Authorization: ***"),
        ("sid=x=y", "=", "sid=***"),
        ("no separator", "=", "***"),
    ],
)
def test_values_are_hidden(text: str, separator: str, shown: str) -> None:
    assert mask_pair(text, separator) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:pw@h:1/0", "redis://:***@h:1/0"),
        ("rediss://user:p:w@h/0", "rediss://user:***@h/0"),
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://user@h:1/0", "redis://user@h:1/0"),
    ],
)
def test_a_password_in_a_url_is_hidden(url: str, shown: str) -> None:
    assert mask_url(url) == shown
