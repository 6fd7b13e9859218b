"""Where plugins come from, and how what is wrong with one is said."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import structlog

from common.model.errors import UsageError
from common.plugins import loading
from common.plugins.loading import GROUP, PluginSet, Reference, load, reference

GOOD = """
from dataclasses import dataclass
from crawlctl.plugins import Plugin

@dataclass
class Note:
    text: str

class Outer:
    class Good(Plugin):
        def refuse(self, link):
            return None

class Good(Outer.Good):
    pass
"""

DERIVED = "from crawlctl.plugins import Plugin\nclass Good(Plugin):\n    "


UNWRITABLE = """
class Fault(Exception):
    def __str__(self):
        raise ValueError
    __repr__ = __str__
"""


def written(folder: Path, text: str, name: str = "shop.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shop.plugins:Prices", Reference("Prices", "shop.plugins", "Prices")),
        ("prices=shop:Prices", Reference("prices", "shop", "Prices")),
        ("p=/a=b:c/shop.py:Outer.Prices", Reference("p", "/a=b:c/shop.py", "Outer.Prices")),
        ("/a=b/shop.py:Outer.Prices", Reference("Prices", "/a=b/shop.py", "Outer.Prices")),
    ],
)
def test_a_reference_has_a_name_and_a_place(text: str, expected: Reference) -> None:
    assert expected == reference(text)
    assert expected == reference(str(expected)), "as it is passed on"


def test_a_file_is_named_from_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path / "shop.py") == reference("shop.py:Prices").module


@pytest.mark.parametrize(
    "text", ["", "shop", "shop:", ":Prices", "=shop:Prices", "a b=shop:Prices", "shop:Ünïcode"]
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--plugin: "):
        reference(text)


def test_a_file_is_imported_once_and_its_module_hides_no_other(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD, "json.py")
    good = load(reference(f"{path}:Good"))
    inner = load(reference(f"{path}:Outer.Good"))
    assert issubclass(good, inner)
    assert path == good.__module__


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nowhere_at_all", "ModuleNotFoundError.*nowhere_at_all"),
        ("raise ValueError('a\\nb')", r"ValueError: a b, .*shop\.py line 1"),
        ("raise SystemExit", "SystemExit"),
        ("def broken(:", "SyntaxError"),
        ("x = 1", "has no 'Good'"),
        ("class Good: pass", r"crawlctl\.plugins\.Plugin"),
        ("Good = 7", r"crawlctl\.plugins\.Plugin"),
        (
            f"{DERIVED}def enrichh(self, response): ...",
            "none of the hooks refuse, prepare, parse, enrich",
        ),
        (f"{DERIVED}async def refuse(self, link): ...", r"Good\.refuse is async"),
        ("class Panic(BaseException): ...\nraise Panic('p')", r"Panic: p, .*shop\.py line 2"),
        ("import asyncio\nraise asyncio.CancelledError", "CancelledError"),
        (f"{UNWRITABLE}raise Fault", r"\(Fault, .*shop\.py line"),
        (f"{UNWRITABLE}Good = Fault()", "a Fault is no plugin"),
        (
            "def __getattr__(name):\n    import nowhere_at_all",
            r"shop\.py cannot be imported \(ModuleNotFoundError.*nowhere_at_all",
        ),
    ],
)
def test_what_is_no_plugin_is_refused_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"^--plugin Good: .*{said}") as caught:
        load(reference(f"{written(tmp_path, text)}:Good"))
    assert "\n" not in str(caught.value)


def test_a_file_that_failed_is_imported_anew(tmp_path: Path) -> None:
    path = written(tmp_path, "raise ValueError")
    with pytest.raises(UsageError):
        load(reference(f"{path}:Good"))
    written(tmp_path, GOOD)
    assert "Good" == load(reference(f"{path}:Good")).__name__


def test_two_plugins_of_one_name_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    given = [reference(f"{path}:Good"), reference(f"{path}:Outer.Good")]
    with pytest.raises(UsageError, match="two plugins are named 'Good'"):
        PluginSet(given)
    assert ("Good", "other") == PluginSet(
        [given[0], given[1]._replace(name="other")], installed=dict
    ).names


def test_installed_plugins_are_imported_when_asked_for_and_hidden_by_given_ones(
    tmp_path: Path,
) -> None:
    given = reference(f"good={written(tmp_path, GOOD)}:Good")
    entries = {
        name: EntryPoint(name, value, GROUP)
        for name, value in {"good": "nowhere_at_all:X", "bad": "nowhere_at_all:Y"}.items()
    }
    plugins = PluginSet([given], installed=lambda: entries)
    assert ("bad", "good") == plugins.names
    assert "Good" == plugins.get("good").__name__
    with pytest.raises(UsageError, match=r"^plugin bad: .*nowhere_at_all"):
        plugins.get("bad")
    known = re.escape("no plugin is named 'none'; there are bad, good")
    with pytest.raises(UsageError, match=known):
        plugins.get("none")


def test_installed_plugins_are_found_by_their_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, GOOD, "a_shop_of_tests.py")
    package = tmp_path / "a_shop_of_tests-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: a-shop-of-tests\nVersion: 1.0\n"
    )
    (package / "entry_points.txt").write_text(f"[{GROUP}]\nbest = a_shop_of_tests:Outer.Good\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins = PluginSet()
    assert "best" in plugins.names
    assert "Outer.Good" == plugins.get("best").__qualname__


@pytest.mark.parametrize("listed", ["no equals sign", "name = \ud8ff:O"])
def test_a_package_that_lists_nothing_readable_keeps_no_worker_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    package = tmp_path / "malformed-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: malformed\nVersion: 1.0\n")
    text = f"[{GROUP}]\n{listed}\n".encode("utf-8", "surrogatepass")
    (package / "entry_points.txt").write_bytes(text)
    monkeypatch.syspath_prepend(tmp_path)
    given = reference(f"good={written(tmp_path, GOOD)}:Good")
    with structlog.testing.capture_logs() as logged:
        assert ("good",) == PluginSet([given]).names
    assert ["plugins.not_found"] == [one["event"] for one in logged]


def test_installed_plugins_that_no_job_can_name_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [EntryPoint(name, "shop:O", GROUP) for name in ("good", "b ad", "\x1b[31m")]
    monkeypatch.setattr(loading, "entry_points", lambda **_: entries)
    assert ("good",) == PluginSet().names
