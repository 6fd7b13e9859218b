"""A job's headers, cookies and proxy: what may be sent, for all who check it and who sends it.

Their values may be secret references. ``check_*`` look at them as they are written, wherever that
is; ``revealed_*`` resolve the references and are for where the requests are sent.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from common.model.errors import UsageError
from common.model.job import JobSpec
from common.runtime.secrets import is_reference, reveal

_TOKEN: Final = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_FIELD_VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*")
_PROXY_SCHEMES: Final = ("http", "https", "socks5", "socks5h")
_PROXY: Final = re.compile(r"[\x21-\x7e]+")
_REFERENCE: Final = re.compile(r"@[^\0]+|env:[^\s=\0]+")
_OURS: Final = frozenset(
    ("host", "content-length", "transfer-encoding", "te", "trailer", "connection", "keep-alive",
     "proxy-connection", "upgrade", "expect")
)  # fmt: skip
"""Headers that frame a request or rule its connection: another value breaks every exchange."""


def check_header(text: str) -> None:
    """Check ``Name: value`` as it is written.

    Raises:
        UsageError: it cannot be sent, whatever a reference in it stands for.
    """
    name, value = _header(*_split(text, ":"))
    _check_reference(value, field=f"--header {name}")


def check_cookie(text: str) -> None:
    """Check ``name=value`` as it is written.

    Raises:
        UsageError: it cannot be sent, whatever a reference in it stands for.
    """
    name, value = _cookie(*_split(text, "="))
    _check_reference(value, field=f"--cookie {name}")


def check_proxy(text: str) -> None:
    """Check a proxy's URL, or the reference to one, as it is written.

    Raises:
        UsageError: it is neither.
    """
    if is_reference(text):
        _check_reference(text, field="--proxy")
    else:
        _proxy(text)


def header_fault(name: str, value: str) -> str | None:
    """Return why no request may carry a header, with its name; None where one may."""
    if not _TOKEN.fullmatch(name):
        return f"{name!r}: it is no name of a header"
    if name.lower() in _OURS:
        return f"{name}: it is set for each request and cannot be given"
    if not _FIELD_VALUE.fullmatch(value):
        return f"{name}: the value cannot be sent; give a line of text"
    return None


def revealed_headers(spec: JobSpec) -> list[tuple[str, str]]:
    """Return the headers, cookies among them, that only the seeds' hosts may see.

    Raises:
        UsageError: one cannot be sent, or a secret it refers to is missing here.
    """
    headers = [_header(*_revealed(text, ":", field="--header")) for text in spec.header]
    cookies = [_cookie(*_revealed(text, "=", field="--cookie")) for text in spec.cookie]
    if cookies:
        headers.append(("Cookie", "; ".join(f"{name}={value}" for name, value in cookies)))
    return headers


def revealed_proxy(spec: JobSpec) -> str | None:
    """Return the URL of the job's proxy; None when it has none.

    Raises:
        UsageError: it is malformed, or the secret it refers to is missing here.
    """
    return None if spec.proxy is None else _proxy(reveal(spec.proxy, field="--proxy"))


def _split(text: str, separator: str) -> tuple[str, str | None]:
    """Return name and value; None for a value without its separator."""
    name, found, value = text.partition(separator)
    return name.strip(), value.strip() if found else None


def _revealed(text: str, separator: str, *, field: str) -> tuple[str, str | None]:
    name, value = _split(text, separator)
    return name, None if value is None else reveal(value, field=f"{field} {name}")


def _header(name: str, value: str | None) -> tuple[str, str]:
    if value is None or not _TOKEN.fullmatch(name):
        raise UsageError("--header: expected 'NAME: VALUE', as in 'Accept-Language: de'")
    if (fault := header_fault(name, value)) is not None:
        raise UsageError(f"--header {fault}")
    return name, value


def _cookie(name: str, value: str | None) -> tuple[str, str]:
    if value is None or not _TOKEN.fullmatch(name):
        raise UsageError("--cookie: expected NAME=VALUE, one cookie an option")
    if ";" in value or not _FIELD_VALUE.fullmatch(value):
        raise UsageError(
            f"--cookie {name}: the value cannot be sent; give a line of text without semicolons"
        )
    return name, value


def _proxy(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in _PROXY_SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or not _PROXY.fullmatch(text):
        # Not shown: it may hold a password.
        raise UsageError(
            "--proxy: not the URL of a proxy; expected http://[USER:PASSWORD@]HOST:PORT, the same "
            "with socks5://, @FILE or env:NAME"
        )
    return text


def _check_reference(value: str, *, field: str) -> None:
    if is_reference(value) and not _REFERENCE.fullmatch(value):
        raise UsageError(f"{field}: {value!r} names no secret; write @FILE or env:NAME")
