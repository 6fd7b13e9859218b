"""Rules every Lua script keeps: a header that tells the truth, keys from KEYS only."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from common.frontier import scripts
from common.frontier.replies import Refusal

_FOLDER = Path(str(resources.files("common.frontier").joinpath("lua")))
_FILES = sorted(path.stem for path in _FOLDER.glob("*.lua"))
_SHARED = [name for name in _FILES if name.startswith("_")]
_SETUP = Path(__file__).parents[3] / "setup.cfg"


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text("utf-8")


def _header(name: str) -> str:
    lines = _text(name).splitlines()
    end = next(at for at, line in enumerate(lines) if not line.startswith("--"))
    return "\n".join(lines[:end])


def _code(name: str) -> str:
    return "\n".join(line.partition("--")[0] for line in _text(name).splitlines())


def test_every_file_is_a_script_with_a_name_or_shared() -> None:
    assert sorted(scripts.NAMES) == [name for name in _FILES if name not in _SHARED]


@pytest.mark.parametrize("name", scripts.NAMES)
def test_a_script_says_what_it_does_takes_and_returns(name: str) -> None:
    header = _header(name)
    assert header.startswith(f"-- {name}: ")
    # A pace belongs to no task: it is the one key that may come into being by itself.
    assert ("-- KEYS[1] pace hash" if name == "permit" else "-- KEYS[1] meta hash") in header
    assert "-- Returns {" in header
    code = _code(name)
    assert ("ARGV" in code) == ("ARGV[1]" in header)


@pytest.mark.parametrize("name", scripts.NAMES)
def test_a_header_names_every_key_and_argument_that_has_a_number(name: str) -> None:
    header, code = _header(name), _code(name)
    for kind in ("KEYS", "ARGV"):
        used = {int(number) for number in re.findall(rf"{kind}\[(\d+)\]", code)}
        named = {int(number) for number in re.findall(rf"{kind}\[(\d+)", header)}
        assert used <= named, kind


@pytest.mark.parametrize("name", scripts.NAMES)
def test_a_script_names_all_it_refuses_with(name: str) -> None:
    """Tags of the shared guards come with the fragment they stand in."""
    header, code = _header(name), _code(name)
    guards = {
        "owner_refusal": {"MISSING", "VERSION", "RUN", "STALE"},
        "master_refusal": {"MISSING", "VERSION", "STALE"},
        "shard_refusal": {"MISSING", "VERSION", "RUN"},
        "presence_refusal": {"MISSING", "VERSION"},
    }
    expected = set(re.findall(r"{ '([A-Z]+)'", code)) - {"OK"}
    for guard, tags in guards.items():
        if f"{guard}(" in code:
            expected |= tags
    if name == "create":  # it makes what is missing
        expected.discard("MISSING")
    returned = header.partition("-- Returns ")[2]
    assert {tag for tag in expected if tag not in returned} == set()
    known = {*Refusal.__members__, "VERSION", "LAYERS", "MOVED", "OUTDATED"}
    assert expected <= known


@pytest.mark.parametrize("name", _FILES)
def test_no_key_is_made_inside_a_script(name: str) -> None:
    code = _code(name)
    assert "crawlctl:" not in code
    strings = re.findall(r"'([^'\n]*)'", code)
    assert [text for text in strings if "{" in text or ":q:" in text] == []
    # The first argument of each command is a key: an element of KEYS, or a name bound to one.
    first = re.findall(r"\bcall\('[A-Z]+', (?:'(?:GROUPS|CREATE)', )?([^,)]+)", code)
    bound = {
        "meta", "ready", "pace", "slots", "slot", "busy", "in_flight", "queue", "hash",
    }  # fmt: skip
    assert [key for key in first if not key.startswith("KEYS[") and key not in bound] == []


@pytest.mark.parametrize("name", _FILES)
def test_a_script_unpacks_in_bounded_pieces_only(name: str) -> None:
    for line in _code(name).splitlines():
        for arguments in re.findall(r"[^.]unpack\(([^()]*(?:\([^()]*\))?[^()]*)\)", line):
            # The words of a block of a filter, or a slice of at most a thousand.
            assert arguments == "words, 1, 36" or "math.min(i + 999" in arguments, line


@pytest.mark.parametrize("name", scripts.NAMES)
def test_what_a_script_uses_is_put_in_front_and_nothing_else(name: str) -> None:
    body, source = _text(name), scripts.load(strict=False)[name].source
    used = [fragment for fragment in _SHARED if f"-- @use {fragment}" in body or
            re.search(rf"-- @use .*\b{fragment}\b", body)]  # fmt: skip
    for fragment in _SHARED:
        assert (_text(fragment) in source) == (fragment in used)
    for function in ("make_ready", "free_slot", "end_request", "now_ms", "take_in_flight"):
        if f"{function}(" in _code(name):
            assert f"local function {function}(" in source


def test_strict_scripts_begin_with_the_engines_mark_and_their_flags() -> None:
    strict, plain = scripts.load(strict=True), scripts.load(strict=False)
    assert strict["claim"].source == "#!lua\n" + plain["claim"].source
    assert strict["stats"].source == "#!lua flags=allow-oom\n" + plain["stats"].source
    assert strict["claim"].sha != plain["claim"].sha
    assert len({one.sha for one in strict.values()}) == len(scripts.NAMES)


def test_the_package_ships_its_scripts() -> None:
    assert "common.frontier = lua/*.lua" in _SETUP.read_text("utf-8")
