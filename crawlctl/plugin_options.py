"""``--plugin``: of the commands that start workers, where it gives code, and of those for jobs.

A job names its plugins; which code a name stands for is said where workers are started. ``crawl``
does both, so its option takes either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from common.model.errors import UsageError
from common.model.ids import checked_name

if TYPE_CHECKING:
    from common.plugins.loading import PluginSet, Reference

CODE: Final = "[NAME=]MODULE:OBJECT"

F = TypeVar("F", bound=Callable[..., Any])


def code_option(function: F) -> F:
    """Add ``--plugin`` to a command that starts workers for the jobs of others."""
    return click.option(
        "--plugin",
        "plugins",
        multiple=True,
        metavar=CODE,
        help="code that jobs may use by its name, of a module or a file (shop.py:Prices); without "
        "NAME= that of the object; repeatable. What is installed need not be given",
    )(function)


def check_name(option: str, text: str) -> None:
    """Check how a job names a plugin.

    Raises:
        UsageError: it is no name, or code, which no job can bring along.
    """
    if ":" in text:
        raise UsageError(
            f"{option}: {text!r} is code; a job names a plugin that its workers have: start them "
            f"with --plugin {CODE}, and give the NAME here"
        )
    checked_name(text, field=option)


def loaded(texts: Sequence[str]) -> tuple[PluginSet, list[Reference]]:
    """Return the plugins a process has by its options, imported, and what they were.

    Raises:
        UsageError: one is no reference, cannot be imported or is no plugin.
    """
    from common.plugins.loading import PluginSet, reference

    references = [reference(text) for text in texts]
    return PluginSet(references), references


def named(texts: Sequence[str]) -> tuple[tuple[str, ...], list[Reference]]:
    """Return what a job of this machine names, and which of it is code for its workers.

    Args:
        texts: code, or names of installed plugins.

    Raises:
        UsageError: one is no reference, cannot be imported or is no plugin.
    """
    if not texts:
        return (), []
    plugins, references = loaded([text for text in texts if ":" in text])
    code = iter(references)
    names = tuple(next(code).name if ":" in text else text for text in texts)
    for name in names:
        plugins.get(name)
    return names, references


def arguments(references: Sequence[Reference]) -> list[str]:
    """Return the options that give a worker process the same code."""
    return [part for one in references for part in ("--plugin", str(one))]
