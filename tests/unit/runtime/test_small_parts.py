"""Clock, endpoints, printable text and logs."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest
import structlog

from common.model.errors import SettingsError
from common.runtime.clock import seconds_between, utc_now
from common.runtime.endpoints import host_and_port
from common.runtime.logs import configure
from common.runtime.printable import printable


def test_times_are_rfc_3339_in_utc_with_milliseconds() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", utc_now())


def test_seconds_between_two_times() -> None:
    start, end = "2026-01-01T00:00:00.250Z", "2026-01-01T00:01:00.000Z"
    assert seconds_between(start, end) == 59.75
    assert seconds_between(end, start) == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("h:1", ("h", 1)), ("[::1]:80", ("::1", 80)), ("a.b-c:65535", ("a.b-c", 65535))],
)
def test_host_and_port_are_split(text: str, expected: tuple[str, int]) -> None:
    assert host_and_port(text, where="--http") == expected


@pytest.mark.parametrize("text", ["", "h", "h:", ":1", "h:0", "h:x", "::1:80", "a b:1", "h:1/x"])
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^--http: "):
        host_and_port(text, where="--http")


def test_control_characters_are_replaced() -> None:
    text = "a\x1b[31mb\x07\x9bc\u202ed\nä漢"
    assert printable(text) == "a�[31mb��c�d�ä漢"
    assert printable("plain") == "plain"


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("restored_logging")
def test_json_logs_are_one_object_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    log = structlog.get_logger()
    log.info("shard.acquired", shard=3)
    log.debug("not.shown")
    logging.getLogger("aiohttp.client").warning("foreign %s", "one")
    out, err = capsys.readouterr()
    first, second = (json.loads(line) for line in err.splitlines())
    assert out == ""
    assert (first["event"], first["level"], first["shard"]) == ("shard.acquired", "info", 3)
    assert second["event"] == "foreign one"


@pytest.mark.usefixtures("restored_logging")
def test_text_logs_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "text")
    structlog.get_logger().warning("page.odd", url="http://h/\x1b[2J", title="two words")
    _, err = capsys.readouterr()
    assert "\x1b" not in err
    assert "warning page.odd" in err
    assert "title='two words'" in err
