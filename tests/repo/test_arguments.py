"""What is wrong with an argument of a script is said in one line, whose exit code is 2."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos import __main__ as chaos
from tests.support.arguments import real, span, whole

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
BENCHES = sorted(
    path.name
    for path in (SCRIPTS / "bench").iterdir()
    if path.is_file() and path.read_text().startswith("#!")
)


def refused(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=SCRIPTS.parent, capture_output=True, text=True, check=False
    )
    assert (2, "") == (done.returncode, done.stdout), done.stderr
    assert 1 == done.stderr.count("\n"), done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--guards R99", "'P18-sink'"),
        ("--directed nope", "'late-calls'"),
        ("--mutants nope", "'fence'"),
        ("--profile nope", "'basic'"),
        ("--seeds x", "FROM-TO"),
        ("--completion 9-1", "FROM-TO"),
        ("--jobs 0", "1 or more"),
        ("--judge scripts", "history.json"),
        ("--resume README.md", "no file of results"),
        ("--guards R1 --mutants fence", "not allowed with"),
    ],
)
def test_chaos_names_the_choices(
    capsys: pytest.CaptureFixture[str], arguments: str, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        chaos.main(arguments.split())
    out, err = capsys.readouterr()
    assert (2, "", 1) == (ended.value.code, out, err.count("\n"))
    assert said in err


def test_the_script_of_chaos_refuses_what_it_does_not_know() -> None:
    assert "'R99'" in refused(str(SCRIPTS / "_chaos.py"), "--guards", "R99")


@pytest.mark.parametrize(("arguments", "said"), [("soon", "number"), ("1 nope", "sitemap")])
def test_the_fuzzer_names_the_choices(arguments: str, said: str) -> None:
    assert said in refused(str(SCRIPTS / "_fuzz.py"), *arguments.split())


@pytest.mark.parametrize(
    ("arguments", "said"), [("test unti", "unit"), ("check all", "static"), ("fmt all", "no arg")]
)
def test_a_wrong_word_is_refused_before_anything_is_installed(arguments: str, said: str) -> None:
    assert said in refused("-I", str(SCRIPTS / "_env.py"), *arguments.split())


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_refuses_what_it_does_not_know(name: str) -> None:
    assert "--nonsense" in refused(str(SCRIPTS / "bench" / name), "--nonsense")


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (whole(), "1", 1),
        (whole(0), "0", 0),
        (real(), "0.5", 0.5),
        (span, "3", [3]),
        (span, "3-5", [3, 4, 5]),
    ],
)
def test_what_is_right_is_read(read: Callable[[str], object], text: str, value: object) -> None:
    assert value == read(text)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((whole(), text) for text in ("0", "-1", "1.5", "", "x")),
        *((real(0, 1), text) for text in ("2", "-1", "nan", "inf", "", "x")),
        *((span, text) for text in ("", "-", "-5", "5-1", "1-2-3", "x")),
    ],
)
def test_what_is_wrong_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is n"):
        read(text)
