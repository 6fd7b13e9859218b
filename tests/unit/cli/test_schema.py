"""The schemas describe every field of what is taken and given."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.model.job import JobSpec
from common.model.records import ResultRecord
from tests.unit.cli.calling import Caller


@pytest.mark.parametrize(("what", "kind"), [("job", JobSpec), ("result", ResultRecord)])
def test_every_field_is_described(call: Caller, what: str, kind: type[Any]) -> None:
    answer = call("schema", what)
    assert answer.code == 0
    document = json.loads(answer.out)
    assert answer.out.startswith('{\n  "')  # for people too
    properties = document["$defs"][kind.__name__]["properties"]
    assert list(properties) == list(kind.__struct_fields__)
    assert all(one.get("description") for one in properties.values())
