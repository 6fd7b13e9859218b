"""Spec files: the same names and checks as the options, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.model.errors import UsageError
from crawlctl.job_options import spec_from
from crawlctl.spec_file import load
from tests.unit.cli.calling import Caller

TOML = """
scope = "domain"
delay = 2
deny = ['\\.pdf$']
max_pages = 100
allow_private = true
"""


def written(text: str, name: str = "spec.toml") -> str:
    Path(name).write_text(text)
    return name


def test_toml_and_json_say_the_same() -> None:
    in_json = (
        '{"scope": "domain", "delay": 2, "deny": ["\\\\.pdf$"], "max_pages": 100,'
        ' "allow_private": true}'
    )
    found = load(written(TOML))
    assert found == load(written(in_json, "spec.json"))
    assert found == {
        "scope": "domain", "delay": 2.0, "deny": ("\\.pdf$",), "max_pages": 100,
        "allow_private": True,
    }  # fmt: skip


def test_options_win_over_the_file() -> None:
    spec = spec_from({"delay": 0.5, "deny": (), "max_pages": None}, **load(written(TOML)))
    assert (spec.delay, spec.deny, spec.max_pages) == (0.5, ("\\.pdf$",), 100)


def test_what_holds_between_fields_is_asked_of_all_of_them() -> None:
    """Each was checked alone, so that a bound of --recrawl was refused beside it."""
    spec = spec_from({}, **load(written("recrawl_max = 90\nrecrawl = 60")))
    assert (spec.recrawl, spec.recrawl_max) == (60.0, 90.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_dept = 1", ["'max_dept'", "did you mean max_depth?"]),
        ("max-depth = 1", ["'max-depth'", "max_depth"]),
        ("seeds = ['http://h.example/']", ["'seeds'"]),
        ("max_depth = 'one'", ["max_depth", "'one' is not a whole number"]),
        ("delay = 'one'", ["delay", "'one' is not a number"]),
        ("simhash = 1", ["simhash", "1 is not true or false"]),
        ("user_agent = 1", ["user_agent", "1 is not text"]),
        ("cookie = 'a=b'", ["cookie", "what was given is not a list of texts"]),
        ("deny = 'one'", ["deny", "'one' is not a list of texts"]),
        ("deny = [1]", ["deny", "[1] is not a list of texts"]),
        ("scope = 'all'", ["scope", "'all' is not one of host, domain, prefix, any"]),
        ("delay = -1", ["--delay", "from 0 to 86400"]),
        ("recrawl = '6h'", ["recrawl", "'6h' is not a time", "as in 21600"]),
        ("recrawl = 0", ["--recrawl", "from 1s to 3650d, as in 6h"]),
        ("deny = ['(']", ["--deny", "regular expression"]),
        ("sitemaps = ", ["not TOML"]),
    ],
)
def test_what_is_wrong_in_it_exits_2_and_is_named(
    call: Caller, text: str, words: list[str]
) -> None:
    answer = call("submit", "http://h.example/", "--spec", written(text))
    assert (2, "") == (answer.code, answer.out)
    for word in words:
        assert word in answer.err


def test_a_file_that_is_not_there_or_no_object_is_named() -> None:
    with pytest.raises(UsageError, match="nowhere"):
        load("nowhere.toml")
    with pytest.raises(UsageError, match="no object"):
        load(written("[1]", "list.json"))
