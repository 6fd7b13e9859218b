"""The process that reads: whatever a parser does, there is an answer."""

from __future__ import annotations

import pytest

from common.web.html import HtmlParser
from worker.reader import Failed, PageRequest, Reader


@pytest.mark.parametrize("error", [MemoryError("no more"), ValueError("odd")])
def test_a_parser_that_fails_ends_no_reader(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(HtmlParser, "parse", fail)
    asked = PageRequest(b"", "http://h.test/", None, frozenset("a"), "crawlctl", with_simhash=False)
    (answer,) = Reader().answers(asked)
    assert Failed(f"{type(error).__name__}: {error}") == answer
