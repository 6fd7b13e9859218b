"""Seeds as users give them: arguments and lines of a file, checked and made canonical, in a spool.

All seeds are checked before anything is started or stored, so that a private seed or a file without
a usable line changes nothing. They pass through a spool file, never through memory: a million of
them costs nothing but disk.

A line that is no URL is reported with its number and skipped; a bad argument is wrong use. Empty
lines and lines that begin with ``#`` are no seeds.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from common.model.errors import UsageError
from common.web.url import lacks_scheme, parse_seed
from crawlctl.show import note, quantity

CHUNK: Final = 500
"""Seeds in one staged chunk: one request to Redis, and what a successor repeats after a crash."""
_REPORTED: Final = 20
"""Bad lines named one by one; a file that is no list of URLs would flood the terminal."""
_LONGEST_LINE: Final = 65_536
_MAYBE_PRIVATE: Final = re.compile(r"https?://(?:\[|[0-9.]+[:/]|(?:[^/:]*\.)?localhost\.*[:/])")
"""What a canonical URL with an address or a name of this machine begins with: few do, and looking
closer at all of them would take as long as all the rest."""


class Collected(NamedTuple):
    """What was found in the seeds given."""

    good: int
    """How many there are in the spool."""
    bad: int
    """Lines that are no URL."""
    sha256: str
    """Of all canonical URLs in their order: equal for the same seeds."""
    bare: int = 0
    """How many of the good ones were given without a scheme."""
    first_bare: str | None = None
    """The URL that was taken for the first of these."""


def collect(
    urls: Sequence[str], file: str | None, spool: BinaryIO, *, allow_private: bool
) -> Collected:
    """Check all seeds and write the good ones to ``spool``, one canonical URL a line.

    Args:
        urls: seeds given as arguments.
        file: path of a file of seeds, ``-`` for standard input, or None.
        spool: where to; written from its present position on.
        allow_private: whether seeds on loopback and private addresses are wanted.

    Raises:
        UsageError: no seed, a bad argument, an unreadable file, a private address.
    """
    if not urls and file is None:
        raise UsageError("no seed; give URLs as arguments or a file of them by --seeds FILE")
    checked = _Spooler(spool, allow_private=allow_private)
    for url in urls:
        checked.keep(url)
    bad = _keep_lines(file, checked) if file is not None else 0
    if checked.count == 0:
        raise UsageError(f"--seeds: there is no usable seed in {_name(file)}")
    digest = checked.digest.hexdigest()
    return Collected(checked.count, bad, digest, checked.bare, checked.first_bare)


def note_bare(found: Collected, *, quiet: bool) -> None:
    """Say which URL was taken for a seed without scheme, where there is one."""
    if found.first_bare is None or quiet:
        return
    others = found.bare - 1
    more = f", and http for {quantity(others, 'more seed')} without scheme" if others else ""
    note(
        f"seed without scheme: {found.first_bare} is taken{more}; write https:// where it is meant"
    )


class _Spooler:
    """Checks seeds one by one and writes the good ones down."""

    def __init__(self, spool: BinaryIO, *, allow_private: bool) -> None:
        self.count = 0
        self.digest = hashlib.sha256()
        self.bare = 0
        self.first_bare: str | None = None
        self._spool = spool
        self._allow_private = allow_private

    def keep(self, text: str) -> None:
        url = parse_seed(text)
        if not self._allow_private and _MAYBE_PRIVATE.match(url):
            _refuse_private(url)
        line = url.encode("ascii") + b"\n"
        self.digest.update(line)
        self._spool.write(line)
        if lacks_scheme(text):
            self.bare += 1
            self.first_bare = self.first_bare or url
        self.count += 1


def _keep_lines(file: str, checked: _Spooler) -> int:
    """Pass on each line of a file; report the bad ones and return their number."""
    bad = 0
    with _opened(file) as source:
        for number, line in _lines(source):
            try:
                checked.keep(_decoded(line))
            except _PrivateSeedError:
                raise
            except UsageError as error:
                bad += 1
                if bad <= _REPORTED:
                    note(f"crawlctl: {_name(file)}, line {number}: {error}")
    if bad > _REPORTED:
        note(f"crawlctl: {_name(file)}: {quantity(bad - _REPORTED, 'more bad line')}")
    return bad


def chunk_count(seeds: int) -> int:
    """Return how many chunks so many seeds make."""
    return -(-seeds // CHUNK)


def chunks(spool: BinaryIO) -> Iterator[list[str]]:
    """Yield the seeds of a spool, from its present position, in chunks of ``CHUNK``."""
    chunk: list[str] = []
    for line in spool:
        chunk.append(line.decode("ascii").rstrip("\n"))
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class _PrivateSeedError(UsageError):
    """A seed on a private address: not a bad line but wrong use of the whole command."""


def _refuse_private(url: str) -> None:
    from worker.addresses import literal_private

    if literal_private(url):
        raise _PrivateSeedError(
            f"seed {url}: its address is private or loopback; add --allow-private if you mean it"
        )


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        if sys.stdin is None:
            raise UsageError("--seeds: standard input is closed; give a file")
        yield sys.stdin.buffer
        return
    try:
        source = Path(file).open("rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise UsageError.unreadable("--seeds", file, error) from error
    with source:
        yield source


def _lines(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each line that is neither empty nor a comment.

    A line longer than any URL is cut; what is left of it is still too long to be one.
    """
    number = 0
    while line := source.readline(_LONGEST_LINE):
        number += 1
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = source.readline(_LONGEST_LINE)
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        line = line.strip()
        if line and not line.startswith(b"#"):
            yield number, line


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UsageError("not UTF-8 text") from error


def _name(file: str | None) -> str:
    return "standard input" if file == "-" else str(file)
