"""Every mutant of the fault laboratory still applies to the crawler as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.directed import SCENARIOS
from tests.chaos.mutants import MUTANTS, mutated


@pytest.mark.parametrize("name", MUTANTS)
def test_a_guard_can_be_taken_out(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    tree = mutated(mutant, tmp_path)
    assert mutant.scenario in SCENARIOS
    for patch in mutant.patches:
        assert patch.new in (tree / patch.path).read_text()
