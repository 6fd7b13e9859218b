"""Spec files: the options of a job in TOML or JSON, under the names of ``JobSpec``."""

from __future__ import annotations

import json
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from common.model.errors import UsageError
from common.model.job import JobSpec
from crawlctl.job_options import DURATIONS

_WORDS: Final = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_SECRET: Final = ("header", "cookie", "proxy")
"""Fields whose values are not shown."""


def load(path: str) -> dict[str, Any]:
    """Return the fields a spec file sets, each of the type it must have.

    A name that ends in ``.json`` is read as JSON, any other as TOML. What holds between fields, and
    their ranges, is checked where the spec is made of them and the options.

    Raises:
        UsageError: it cannot be read, or a field is unknown or of another type; names the field.
    """
    raw = _read(path)
    known = JobSpec.__struct_fields__
    for name in raw:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
            raise UsageError(f"--spec: {path} has an unknown field {name!r}{hint}")
    values: dict[str, Any] = {}
    kinds = get_type_hints(JobSpec)
    for name, value in raw.items():
        try:
            values[name] = msgspec.convert(value, kinds[name])
        except msgspec.ValidationError as error:
            given = "what was given" if name in _SECRET else repr(value)
            said = f"{given} is not {_expected(name, kinds[name])}"
            raise UsageError(f"--spec: {name} in {path}: {said}") from error
    return values


def _expected(name: str, kind: Any) -> str:
    if name in DURATIONS:
        return "a time; give a number of seconds, as in 21600"
    if get_origin(kind) is tuple:
        return "a list of texts, as in ['one', 'two']"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    return next(words for one, words in _WORDS.items() if one in (kind, *get_args(kind)))


def _read(path: str) -> dict[str, Any]:
    try:
        text = Path(path).read_text("utf-8")
    except OSError as error:
        raise UsageError.unreadable("--spec", path, error) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--spec: {path!r} is not UTF-8 text") from error
    try:
        found = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
    except ValueError as error:
        kind = "JSON" if path.endswith(".json") else "TOML"
        raise UsageError(f"--spec: {path!r} is not {kind} ({error})") from error
    if not isinstance(found, dict):
        raise UsageError(f"--spec: {path!r} holds no object; give one of job options")
    return found
