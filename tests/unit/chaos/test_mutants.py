"""Every guard that the fault laboratory takes out is still where its patch looks for it."""

from __future__ import annotations

import pytest

from tests.chaos.directed import SCENARIOS
from tests.chaos.guards import GUARDS, ROOT
from tests.chaos.mutants import MUTANTS, patched


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_can_be_made(name: str) -> None:
    mutant = MUTANTS[name]
    assert mutant.scenario in SCENARIOS
    assert set(patched(mutant.patches)) == {patch.path for patch in mutant.patches}


@pytest.mark.parametrize("rule", GUARDS)
def test_the_guard_of_a_rule_can_be_taken_out_and_its_test_exists(rule: str) -> None:
    guard = GUARDS[rule]
    assert patched(guard.patches)
    file, _, name = guard.tests.partition("::")
    path = ROOT / "tests" / file
    assert path.exists()
    assert f"def {name}(" in path.read_text() or not name
