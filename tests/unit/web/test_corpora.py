"""The rules of the web against a corpus of inputs and expected outputs, where one is at hand."""

from __future__ import annotations

import base64

import pytest

from common.web import charset
from tests.support.corpora import CHECKS, FOLDER, answers, cases, score

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason="NO SHARED: the corpus of web inputs is no part of the project and does not lie beside "
    "this checkout; tests/support/corpora.py says what it would hold",
)
LEAST = {"encoding": 100, "links": 100, "robots": 630, "sitemaps": 16, "urlnorm": 600}
"""Firm lines there are at least: none is judged by leaving it out."""


@pytest.mark.parametrize("name", CHECKS)
def test_every_firm_line_is_answered_as_the_standards_say(name: str) -> None:
    wrong = [case for case in cases(name) if not case["contentious"] and not answers(name, case)]
    assert [] == wrong
    found = score(name)
    assert found.firm[1] >= LEAST[name], found


def test_no_decoy_is_taken_for_a_declaration_of_encoding() -> None:
    decoys = [case for case in cases("encoding") if "decoy" in case["note"]]
    for case in decoys:
        found = charset.sniff(base64.b64decode(case["bytes_b64"]), case["http_content_type"])
        assert found in (charset.UTF_8, charset.WINDOWS_1252), case["id"]
    assert len(decoys) >= 15
