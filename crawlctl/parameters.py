"""Kinds of values on the command line, refused with words that say what was expected."""

from __future__ import annotations

import math
from typing import Any, Final

import click

from common.model.job import HIGHEST_NUMBER

_HIGHEST: Final = 1e9
"""Some thirty years in seconds; what is called for ever is no number."""


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
