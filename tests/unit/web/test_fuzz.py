"""Hostile bytes, drawn at random, for every reader of the web; ``scripts/fuzz`` draws on."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fuzzing import CHECKS


@pytest.mark.parametrize("name", CHECKS)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_hostile_input_is_read_within_bounds(name: str, data: st.DataObject) -> None:
    CHECKS[name](data)
