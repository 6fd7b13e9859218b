"""Tables, JSON and lengths of time."""

from __future__ import annotations

import io
import json

import pytest

from crawlctl import show


def test_a_table_is_aligned_and_safe(capsys: pytest.CaptureFixture[str]) -> None:
    show.print_table(("name", "pages"), [("a\x1b[2J", 5), ("longer name", 1234), (None, None)])
    assert capsys.readouterr().out.splitlines() == [
        "NAME         PAGES",
        "a�[2J            5",
        "longer name   1234",
        "-                -",
    ]


def test_a_table_says_yes_and_no(capsys: pytest.CaptureFixture[str]) -> None:
    show.print_table(("host", "blocked"), [("a", True), ("b", False)])
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["a", "yes"],
        ["b", "no"],
    ]


def test_a_table_without_rows_has_its_headers(capsys: pytest.CaptureFixture[str]) -> None:
    show.print_table(("id", "state"), [])
    assert capsys.readouterr().out == "ID  STATE\n"


def test_json_is_one_line_without_raw_control_characters() -> None:
    text = show.json_text({"title": "a\x9bb\x7fc\nd\x1b"})
    assert text.isprintable()
    assert json.loads(text) == {"title": "a\x9bb\x7fc\nd\x1b"}


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.9, "7s"), (185, "3m05s"), (7800, "2h10m"), (356_400, "4d3h")]
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert show.duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 pages"), (1, "1 page"), (2, "2 pages")])
def test_numbers_of_things(number: int, text: str) -> None:
    assert show.quantity(number, "page") == text


@pytest.mark.parametrize(
    ("is_terminal", "term", "redraws"),
    [
        (True, "xterm-256color", True),
        (True, "dumb", False),
        (True, None, False),
        (False, "xterm", False),
    ],
)
def test_lines_are_written_anew_where_that_works(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, term: str | None, redraws: bool
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.delenv("TERM", raising=False)
    if term is not None:
        monkeypatch.setenv("TERM", term)
    assert show.redraws(stream) is redraws
