"""The documents and the rules of the house are true."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.frontier.keys import TaskKeys
from common.model.ids import JobId, Task
from common.plugins.api import HOOKS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("crawlctl", "coordinator", "worker", "common")
MAX_LINES = 500
MAX_FUNCTION_LINES = 80


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def symbols() -> set[str]:
    """Every class, function and method name, bare and as Class.method and module.name."""
    found: set[str] = set()
    for path in sources():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found |= {node.name, f"{module}.{node.name}"}
            if isinstance(node, ast.ClassDef):
                methods = (
                    item.name
                    for item in node.body
                    if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
                )
                found |= {f"{node.name}.{method}" for method in methods}
        found.add(module)
        found |= {path.name, path.parent.name}
    found |= {path.name for path in ROOT.rglob("*.lua")}
    return found


def test_every_name_in_the_life_of_a_url_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    life = text.split("## The life of a URL")[1].split("## Invariants")[0]
    named = re.findall(r"`([A-Za-z_][\w.]*)`", life)
    code = [name for name in named if "." in name or "_" in name]
    known = symbols()
    assert len(code) > 15
    assert [] == [name for name in code if name not in known and not name.startswith("per_")]


def test_relative_links_of_the_documents_lead_somewhere() -> None:
    links = [
        (page, target)
        for page in documents()
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    ]
    assert [] == [link for link in links if not (link[0].parent / link[1]).exists()]


def test_modules_and_functions_stay_readable() -> None:
    long_modules, long_functions = [], []
    for path in sources():
        text = path.read_text()
        if text.count("\n") > MAX_LINES:
            long_modules.append(path.name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno > MAX_FUNCTION_LINES:
                    long_functions.append(f"{path.name}:{node.name}")
    assert ([], []) == (long_modules, long_functions)


def test_every_package_and_module_says_what_it_is() -> None:
    silent = [str(path) for path in sources() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert [] == silent


def test_each_module_can_be_imported_alone() -> None:
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sources()]
    names = [
        module.removesuffix(".__init__")
        for module in modules
        if not module.endswith("__main__") and not module.endswith(".keeper")
    ]
    # One process a package keeps this quick; a cycle shows when its first module is imported.
    failed = []
    for package in PACKAGES:
        mine = [name for name in names if name.split(".")[0] == package]
        code = (
            "import importlib, sys\n"
            "for name in sys.argv[1:]:\n"
            "    for loaded in [one for one in sys.modules if one.split('.')[0] in "
            f"{PACKAGES!r}]:\n"
            "        del sys.modules[loaded]\n"
            "    importlib.import_module(name)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *mine],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        if done.returncode:
            failed.append(done.stderr.splitlines()[-1])
    assert [] == failed


def test_every_redis_key_is_documented() -> None:
    keyspace = (ROOT / "docs" / "keyspace.md").read_text()
    keys = [name for name in TaskKeys.__slots__ if not name.startswith("_")]
    made = TaskKeys("c", Task(JobId("j"), 0))
    tails = [str(getattr(made, name)).rsplit(":", 1)[1] for name in keys]
    assert [] == [tail for tail in tails if f"{tail}`" not in keyspace]


def test_every_hook_of_plugins_is_documented() -> None:
    rows = (ROOT / "docs" / "plugins.md").read_text()
    assert [] == [hook for hook in HOOKS if f"| `{hook}(" not in rows]


@pytest.mark.parametrize("word", ["/work/", "/root/", "issue #", "TODO", "FIXME"])
def test_the_repository_speaks_of_the_project_alone(word: str) -> None:
    found = [path for path in [*sources(), *documents()] if word in path.read_text()]
    assert [] == found
