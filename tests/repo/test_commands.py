"""Every command has a test that runs it as a user would, against real servers.

Such a test names what it runs: ``@pytest.mark.commands("job show", ...)``. The words have to stand
in its module as arguments of one call, so that a mark is no mere claim.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click

from crawlctl.cli import cli
from crawlctl.framework import Group

TESTS = Path(__file__).resolve().parents[1]
FOLDERS = (TESTS / "system", TESTS / "integration" / "cli")


def commands(group: Group, *path: str) -> Iterator[str]:
    """Yield each command's words; groups that do something by themselves are commands too."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, Group):
            if command.invoke_without_command:
                yield " ".join((*path, name))
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name))


def marked() -> dict[str, list[Path]]:
    """Return command -> modules with a test that is marked with it."""
    found: dict[str, list[Path]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted(folder.glob("test_*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.commands":
                    for argument in node.args:
                        found[ast.literal_eval(argument)].append(path)
    return found


def texts_together(path: Path) -> Iterator[list[str]]:
    """Yield the texts that stand together in a call, a tuple or a list, in their order."""
    for node in ast.walk(ast.parse(path.read_text())):
        parts = node.args if isinstance(node, ast.Call) else getattr(node, "elts", ())
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.commands"):
            yield [_text(part) for part in parts]


def _text(part: ast.AST) -> str:
    if isinstance(part, ast.JoinedStr):  # f"start-{role}"
        return "".join(
            str(piece.value) if isinstance(piece, ast.Constant) else "*" for piece in part.values
        )
    return part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "\0"


def names(words: list[str], texts: list[str]) -> bool:
    """Tell whether the words stand side by side in the texts."""
    return any(
        all(
            text == word or (text.endswith("*") and word.startswith(text[:-1]))
            for text, word in zip(texts[at : at + len(words)], words, strict=True)
        )
        for at in range(len(texts) - len(words) + 1)
    )


def test_every_command_is_run_by_a_test_against_real_servers() -> None:
    assert set(commands(cli)) == set(marked())


def test_a_mark_is_no_mere_claim() -> None:
    claims = [
        (command, path.name)
        for command, paths in marked().items()
        for path in paths
        if not any(names(command.split(), texts) for texts in texts_together(path))
    ]
    assert [] == claims


def test_words_are_found_where_they_stand_together() -> None:
    assert names(["job", "show"], ["\0", "job", "show", "j"])
    assert names(["start-master"], ["start-*"])
    assert not names(["job", "show"], ["job", "\0", "show"])
    assert not names(["job", "show"], ["job"])
