"""Every field report has a test: its number and kind are in the test's name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve()
_TESTS = _HERE.parents[1]
_REPORTS = _HERE.parents[3] / "shared" / "field-reports.md"
COUNT = 42


def found_by_report() -> dict[int, list[str]]:
    """Return the names of the tests of each report, ``test_h07_...``."""
    found: dict[int, list[str]] = {}
    for path in (_TESTS / "integration" / "fieldreports").glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                numbered = re.match(r"test_h([0-9]{2})_\w{10,}", node.name)
                if numbered is not None:
                    found.setdefault(int(numbered[1]), []).append(node.name)
    return found


def test_each_report_has_a_test() -> None:
    found = found_by_report()
    assert [] == [number for number in range(1, COUNT + 1) if number not in found]
    assert [] == [number for number in found if number > COUNT]


@pytest.mark.skipif(
    not _REPORTS.is_file(),
    reason="NO SHARED: the text of the field reports is no part of the project and does not lie "
    "beside this checkout; that each has a test is checked everywhere",
)
def test_no_report_is_forgotten() -> None:
    numbers = re.findall(r"^### H([0-9]+) ", _REPORTS.read_text(), re.MULTILINE)
    assert list(range(1, COUNT + 1)) == sorted(map(int, numbers))
