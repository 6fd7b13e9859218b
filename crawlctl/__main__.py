"""Entry point: runs a command and turns every expected error into one sentence and an exit code."""

from __future__ import annotations

import os
import sys


def _leave_out_the_current_folder() -> None:
    """Import nothing from the folder of the user, which ``python -m`` puts first.

    It may hold a ``redis.py`` or ``click.py`` of its own, or of somebody else's. A checkout that is
    run from its own folder needs it.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    if not sys.flags.safe_path and sys.path[:1] != [root]:
        del sys.path[:1]


# Before all other imports. These two were imported by the interpreter itself.
if __name__ == "__main__":
    _leave_out_the_current_folder()

import io  # noqa: E402
import signal  # noqa: E402

FAILED = 1
WRONG_USE = 2
INTERRUPTED = 130
_IS_PROGRAM = __name__ == "__main__" or sys.argv[0].rpartition("/")[2] == "crawlctl"
"""Whether this process is ours: then its signals and files are as well."""


def _leave_at_once(_number: int, _frame: object) -> None:
    os._exit(INTERRUPTED)


def _outside_commands() -> None:
    """Let Ctrl-C end us without a word while no command runs: there is nothing to tidy up."""
    if _IS_PROGRAM and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave_at_once)


# Before all other imports: they take longer than a finger that notices a mistake.
_outside_commands()

from collections.abc import Sequence  # noqa: E402
from pathlib import Path  # noqa: E402

import click  # noqa: E402

from common.model.errors import CrawlerError  # noqa: E402
from common.runtime import installation  # noqa: E402
from crawlctl.cli import cli  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``crawlctl`` with these arguments, by default the process's; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if signal.getsignal(signal.SIGINT) is _leave_at_once:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return _run(given)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        _outside_commands()


def _run(given: list[str]) -> int:
    if not _has_output():
        return WRONG_USE
    try:
        if _IS_PROGRAM:
            _buffer_output()
            installation.hold()
        answer = cli.main(args=given or ["--help"], prog_name="crawlctl", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _leave_quietly()
    except click.Abort:
        return INTERRUPTED
    except (click.ClickException, CrawlerError, OSError, BaseExceptionGroup) as error:
        expected = _expected(error)
        if expected is None:
            raise
        _complain(_sentence(expected))
        return getattr(expected, "exit_code", FAILED)
    return answer if isinstance(answer, int) else 0


def _has_output() -> bool:
    """Tell whether there is a standard output; complain if not.

    A closed standard file is opened on nothing: its number would be given to the next connection,
    and whoever writes to a number he knows would write into that.
    """
    found = sys.stdout is not None
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if stream is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # to the end
    if not found:
        _complain("standard output is closed; redirect it to a file or to /dev/null")
    return found


def _buffer_output() -> None:
    """Write all of what is to be written, or fail, also with ``PYTHONUNBUFFERED`` or ``-u``.

    There a write goes to the system as it is. Where the reader leaves in the middle of it, or a
    disk is full, the system takes a part, and nobody says so.
    """
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and isinstance(out.buffer, io.RawIOBase):
        whole = io.BufferedWriter(io.FileIO(out.fileno(), "wb", closefd=False))
        sys.stdout = io.TextIOWrapper(
            whole, encoding=out.encoding, errors=out.errors, line_buffering=True
        )


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
