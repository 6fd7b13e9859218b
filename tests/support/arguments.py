"""Arguments of the scripts: what is wrong with one is said in one line, and ends with code 2."""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An argparse parser that complains in one line; descriptions are shown as they are written."""

    def __init__(self, *, description: str | None, prog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=argparse.RawTextHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        said = message.removeprefix("argument ")
        self.exit(2, f"{self.prog}: {said} ({self.prog} --help says more)\n")


def whole(least: int = 1) -> Callable[[str], int]:
    """Return what reads a whole number of at least so much."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return int(text)

    return read


def real(least: float = 0.0, most: float = math.inf) -> Callable[[str], float]:
    """Return what reads a finite number within these limits."""
    limits = f"of {least:g} or more" if math.isinf(most) else f"from {least:g} to {most:g}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (least <= value <= most and math.isfinite(value)):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {limits}")
        return value

    return read


def span(text: str) -> list[int]:
    """Return the whole numbers that ``FROM-TO`` names, or the one that ``N`` names."""
    first, _, last = text.partition("-")
    if first.isdecimal() and (last or first).isdecimal():
        found = list(range(int(first), int(last or first) + 1))
        if found:
            return found
    raise argparse.ArgumentTypeError(f"{text!r} is neither FROM-TO, as 1-20, nor a number")


def folder(text: str) -> Path:
    """Return the folder of this name, which must be there."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return Path(text)


def program(text: str) -> str:
    """Return the path of a program, by name on PATH or by path."""
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"there is no program {text!r}")
    return found
