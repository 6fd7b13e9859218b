"""Help: there for every command, with an example, at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import click
import pytest

from crawlctl.cli import cli
from tests.unit.cli.calling import Caller, in_new_process

HEAVY = (
    "aetcd", "aiohttp", "asyncio", "can_ada", "grpc", "msgspec", "redis", "rich", "selectolax",
    "structlog", "uvloop",
)  # fmt: skip
DRIVERS = ("aetcd", "aiohttp", "grpc", "redis", "selectolax")


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", [(), *commands()], ids=" ".join)
def test_every_command_has_help_with_an_example(call: Caller, path: tuple[str, ...]) -> None:
    answer = call(*path, "--help")
    assert answer.code == 0
    assert answer.err == ""
    lines = answer.out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("Example"))
    assert "crawlctl " + " ".join(path) in "\n".join(lines[at:])


GROUPS = sorted({path[:-1] for path in commands()})


@pytest.mark.parametrize("path", GROUPS, ids=lambda path: " ".join(path) or "crawlctl")
def test_commands_are_listed_in_one_style(call: Caller, path: tuple[str, ...]) -> None:
    _, _, listed = call(*path, "--help").out.partition("Commands:\n")
    entries = re.findall(r"^  [a-z-]+ +(\S.*)$", listed.partition("\n\n")[0], re.MULTILINE)
    assert entries
    for words in entries:
        assert words[0].islower() or words.startswith("JSON"), words
        assert not words.endswith("."), words


def imported_by(calls: list[list[str]], names: tuple[str, ...]) -> list[str]:
    """Return which of these modules are loaded after calls in a new process."""
    code = (
        "import sys; from crawlctl.__main__ import main; "
        f"[main(call) for call in {calls!r}]; "
        f"print([name for name in {names!r} if name in sys.modules], file=sys.stderr)"
    )
    answer = in_new_process("-c", code)
    assert answer.code == 0
    found: list[str] = ast.literal_eval(answer.err)
    return found


def test_help_imports_nothing_heavy() -> None:
    assert imported_by([["--help"]], HEAVY) == []


def test_help_of_a_command_imports_no_driver() -> None:
    calls = [[*path, "--help"] for path in commands()]
    assert imported_by(calls, DRIVERS) == []


def test_without_a_command_help_is_shown(call: Caller) -> None:
    assert call() == call("--help")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_code_is_printed(call: Caller, shell: str) -> None:
    answer = call("completion", shell)
    assert answer.code == 0
    assert "_CRAWLCTL_COMPLETE" in answer.out


def test_completion_completes_commands_and_options() -> None:
    def complete(words: str) -> str:
        position = str(len(words.split(" ")) - 1)
        answer = in_new_process(
            "-m",
            "crawlctl",
            _CRAWLCTL_COMPLETE="bash_complete",
            COMP_WORDS=words,
            COMP_CWORD=position,
        )
        return answer.out

    assert "plain,submit" in complete("crawlctl su")
    assert "plain,--max-depth" in complete("crawlctl crawl --max-d")
