"""Kinds of values on the command line, refused with words that say what was expected."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any, Final

import click

from common.model.job import HIGHEST_NUMBER

_HIGHEST: Final = 1e9
"""Some thirty years in seconds; what is called for ever is no number."""
_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
DURATION_SYNTAX: Final = "write 90 (seconds), 15m, 6h or 1d"
SIZE_SYNTAX: Final = "write 500k, 16M or plain bytes"


class Number(click.ParamType[float]):
    """A number of a range; ``nan`` and infinity are none."""

    name = "number"

    def __init__(self, low: float = -_HIGHEST, high: float = _HIGHEST) -> None:
        self._low = low
        self._high = high

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number.

        Raises:
            click.BadParameter: it is none, or out of range.
        """
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number, as in 10 or 0.5", param, ctx)
        if not self._low <= number <= self._high:
            self.fail(
                f"{number:g} is out of range; give a number from {self._low:g} to {self._high:g}",
                param,
                ctx,
            )
        return number


class Place(click.ParamType[str]):
    """A file or folder by its name; an empty one is a variable that was not set."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name.

        Raises:
            click.BadParameter: it is empty.
        """
        if not value:
            self.fail("it is empty; give the name of a file or folder", param, ctx)
        return str(value)


class Size(click.ParamType[int]):
    """A number of bytes, as ``500k``, ``16M`` or ``2G``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes.

        Raises:
            click.BadParameter: it is no size, or none at all.
        """
        size = size_of(str(value))
        if not size:
            self.fail(f"{value!r} is not a size; {SIZE_SYNTAX}", param, ctx)
        return size


def size_of(text: str) -> int | None:
    """Return the bytes a text means; None where it means none."""
    match = re.fullmatch(r"([0-9]{1,1000}(?:\.[0-9]+)?)\s*([kmg]?)b?", text.strip().lower())
    return None if match is None else int(Decimal(match[1]) * _UNITS[match[2]])


def duration_of(text: str) -> float | None:
    """Return the seconds a text means; None where it means none."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([smhd]?)", text.strip().lower())
    return None if match is None else float(match[1]) * _SECONDS[match[2]]


class Whole(click.ParamType[int]):
    """A whole number of a range."""

    name = "integer"

    def __init__(self, low: int = -HIGHEST_NUMBER, high: int = HIGHEST_NUMBER) -> None:
        self._low = low
        self._high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number.

        Raises:
            click.BadParameter: it is none, or out of range.
        """
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number, as in 10", param, ctx)
        if not self._low <= number <= self._high:
            self.fail(
                f"{value} is out of range; give a number from {self._low} to {self._high}",
                param,
                ctx,
            )
        return number
