"""What a failed call means, in our own errors.

The one question that matters is whether a write may have been applied:

- surely not (``CoordUnavailable``): it never left, or etcd said so before proposing it;
- refused for good (``LeaseLost``, ``SettingsError``, ``RefusedError``): etcd said no to it;
- unknown (``UnknownOutcome``): everything else. It may have been applied, or may still be.

A read changes nothing, so for a read unknown is the same as unavailable.
"""

from __future__ import annotations

import re
from typing import Any, Final

from common.coord.wire import messages
from common.model.errors import (
    CoordUnavailable,
    CrawlerError,
    LeaseLost,
    RefusedError,
    SettingsError,
    UnknownOutcome,
)

Code: Final[Any] = messages.StatusCode

_NOT_PROPOSED: Final = (
    "failed to connect to all addresses",
    "etcdserver: no leader",
    "etcdserver: too many requests",
)
_ADDRESS: Final = re.compile(r"ipv[46]:\S+: ")
_TOKEN_INVALID: Final = (
    "etcdserver: invalid auth token",
    # The token is older than a change of users or roles; the words differ between releases.
    "auth: revision in header is old",
    "etcdserver: revision of auth store is old",
)
_REFUSED: Final = frozenset({Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION, Code.OUT_OF_RANGE})


def is_token_invalid(error: Any) -> bool:
    """Tell whether etcd asks to authenticate again; the call was not executed."""
    details = error.details() or ""
    return error.code() == Code.UNAUTHENTICATED or any(one in details for one in _TOKEN_INVALID)


def is_auth_off(error: Any) -> bool:
    """Tell whether etcd answered that it does not ask for users."""
    return "authentication is not enabled" in (error.details() or "")


def reason(error: Any) -> str:
    """Return gRPC's words for the failure, without its wrapping."""
    details = (error.details() or "").rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
    return _ADDRESS.sub("", details) or error.code().name.lower()


def translated(error: Any, *, endpoint: str, is_write: bool) -> CrawlerError:
    """Return our error for a failed call to ``endpoint``."""
    code, details = error.code(), error.details() or ""
    said = f"etcd at {endpoint}: {reason(error)}"
    if code == Code.NOT_FOUND and "lease not found" in details:
        return LeaseLost("etcd does not know the lease any more: it expired or was revoked")
    if "database space exceeded" in details:
        return CoordUnavailable(f"{said}; compact and defragment it, then disarm the alarm")
    if any(one in details for one in _NOT_PROPOSED):
        return CoordUnavailable(said)
    if _is_about_the_user(code, details):
        return SettingsError(f"--etcd-user: {said}; give NAME:PASSWORD of a user that etcd knows")
    if code == Code.PERMISSION_DENIED or (code in _REFUSED and "etcdserver: " in details):
        return RefusedError(said)
    if is_write:
        return UnknownOutcome(f"{said}; the write may or may not have been applied")
    return CoordUnavailable(said)


def _is_about_the_user(code: Any, details: str) -> bool:
    return code == Code.UNAUTHENTICATED or any(
        one in details for one in ("user name is empty", "authentication failed", *_TOKEN_INVALID)
    )
