"""Entry point: runs a command and turns every expected error into one sentence and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from common.model.errors import CrawlerError
from crawlctl.cli import cli

FAILED = 1
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``crawlctl`` with these arguments, by default the process's; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        answer = cli.main(args=given or ["--help"], prog_name="crawlctl", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _leave_quietly()
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except (click.ClickException, CrawlerError, OSError, BaseExceptionGroup) as error:
        expected = _expected(error)
        if expected is None:
            raise
        _complain(_sentence(expected))
        return getattr(expected, "exit_code", FAILED)
    return answer if isinstance(answer, int) else 0


def _expected(error: BaseException) -> BaseException | None:
    """Return the error to explain: of tasks that failed together the first, if all are expected."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    errors, others = error.split(CrawlerError)
    if errors is None or others is not None:
        return None
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _sentence(error: BaseException) -> str:
    """Return what is wrong in one sentence; for wrong use also where the right one is described."""
    if isinstance(error, OSError):
        # Nothing of ours is expected to fail here, but disks fill up and mounts go away.
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    if not isinstance(error, click.ClickException):
        return str(error)
    message = error.format_message().rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message}; see '{context.command_path} --help'" if context else message


def _complain(sentence: str) -> None:
    from common.runtime.printable import printable

    print(f"crawlctl: {printable(' '.join(sentence.split()))}", file=sys.stderr)  # noqa: T201


def _leave_quietly() -> int:
    """Leave without a word: whoever read our output has seen enough of it."""
    # The interpreter flushes standard output once more on its way out; that must not fail as well.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
