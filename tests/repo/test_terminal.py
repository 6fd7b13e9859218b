"""Nothing from the web reaches a terminal as it was sent: all output goes one way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crawlctl.show import json_text, note, print_line, print_table

ROOT = Path(__file__).resolve().parents[2]
WRITERS = {
    "crawlctl/show.py": "the way",
    "crawlctl/__main__.py": "errors, made printable",
    "crawlctl/progress.py": "counters, and notes made printable",
    "crawlctl/watching.py": "control sequences of its own",
    "crawlctl/framework.py": "the version",
    "crawlctl/commands/demo_site.py": "an address of ours",
    "crawlctl/commands/submit.py": "a checked id",
    "crawlctl/commands/completion.py": "a script of the library",
    "crawlctl/export/targets.py": "records, as JSON, or CSV made printable",
    "worker/reader.py": "messages to its worker, by a pipe",
    "common/runtime/process.py": "control sequences of its own",
    "common/runtime/logs.py": "log lines, made printable",
}
"""Which modules write to a terminal, and what."""
HOSTILE = "a\x1b[31mb\x07c\x9bd\u202ee\rf\u2066g\x7f"


def test_every_module_that_writes_to_a_terminal_is_known() -> None:
    found = set()
    for package in ("crawlctl", "coordinator", "worker", "common"):
        for path in (ROOT / package).rglob("*.py"):
            if re.search(r"sys\.std(out|err)|\bprint\(|click\.s?echo\(", path.read_text()):
                found.add(str(path.relative_to(ROOT)))
    assert found <= WRITERS.keys()


def test_tables_lines_notes_and_json_hold_no_controls(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a", "b"], [[HOSTILE, 1], ["x", 2]])
    print_line(HOSTILE)
    note(HOSTILE)
    told = capsys.readouterr()
    for text in (told.out, told.err, json_text({HOSTILE: [HOSTILE]}) + "\n"):
        assert text.replace("\n", "").isprintable()
