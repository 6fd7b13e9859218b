"""Secrets given by reference (``@FILE``, ``env:NAME``), and how they are hidden when shown.

A reference is passed on as it is and resolved only by the node that uses the value, so that jobs
and command lines need not hold the secret itself. Literal values are allowed, and hidden alike.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from common.model.errors import SettingsError

HIDDEN: Final = "***"

_URL_PASSWORD = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://[^/?#@:]*:)[^@/?#]*(?=@)")


def reveal(value: str, *, field: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the secret ``value`` stands for: a file's content, a variable's value, or itself.

    A file's last line end is dropped, since editors add one.

    Raises:
        SettingsError: the file cannot be read or the variable is not set; the message names
            ``field`` and the reference, never a secret.
    """
    if value.startswith("@"):
        try:
            return Path(value[1:]).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            message = f"{field}: cannot read the secret file {value[1:]!r} ({reason}); name one "
            message += "that this process can read"
            raise SettingsError(message) from error
    if value.startswith("env:"):
        name = value[4:]
        found = (os.environ if environ is None else environ).get(name)
        if found is None:
            raise SettingsError(
                f"{field}: the environment variable {name!r} holding the secret is not set here"
            )
        return found
    return value


def is_reference(value: str) -> bool:
    """Tell whether ``value`` stands for a secret kept elsewhere."""
    return value.startswith(("@", "env:"))


def mask_pair(text: str, separator: str) -> str:
    """Return ``Name: ***`` or ``name=***``; a text without the separator is hidden whole."""
    name, found, _ = text.partition(separator)
    if not found:
        return HIDDEN
    return f"{name.strip()}{separator}{' ' if separator == ':' else ''}{HIDDEN}"


def mask_url(url: str) -> str:
    """Return the URL with its password hidden, if it has one."""
    return _URL_PASSWORD.sub(rf"\g<1>{HIDDEN}", url)
