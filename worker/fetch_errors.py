"""Names what went wrong with a request: one stable code and one sentence for every failure.

The HTTP library's exceptions stop here. The order of the cases matters, since many of its classes
have several parents; one that is not known by name is a ``protocol_error`` that tells the class.
"""

from __future__ import annotations

import errno
import socket
import ssl
from typing import ClassVar, Final, NamedTuple

import aiohttp
from aiohttp.http_exceptions import (
    ContentLengthError,
    HttpProcessingError,
    TransferEncodingError,
)

from common.model.records import ErrorInfo
from common.web.retry import ErrorCode

NO_SUCH_NAME: Final = frozenset(
    number
    for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY")
    if (number := getattr(socket, name, None)) is not None
)
_RESET: Final = frozenset((errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ESHUTDOWN))
_OUT_OF_RESOURCES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


_SOCKS_MODULES: Final = ("aiohttp_socks", "python_socks")
"""Their errors have no parent in common, and the packages are not loaded without need."""


class FetchFault(Exception):
    """A failure this worker itself finds; the message is one sentence."""

    code: ClassVar[ErrorCode]


class PrivateAddressFault(FetchFault, OSError):
    """The address is not public. An OSError, as the making of sockets has to raise."""

    code = ErrorCode.PRIVATE_ADDRESS

    def __init__(self) -> None:
        # One text for all addresses: differing ones would be merged into an error of no type.
        super().__init__("the address is not public; --allow-private permits it")


class InvalidLocationFault(FetchFault):
    """A redirect names a target that is no URL."""

    code = ErrorCode.INVALID_LOCATION


class RefusedTypeFault(FetchFault):
    """The media type is none of those the job accepts."""

    code = ErrorCode.REFUSED_TYPE


class TooLargeFault(FetchFault):
    """The decoded body, or an inner layer of it, is over the limit."""

    code = ErrorCode.TOO_LARGE

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the body is larger than {limit_bytes} bytes")


class BadEncodingFault(FetchFault):
    """The body is not what its Content-Encoding says, or in a coding that was not asked for."""

    code = ErrorCode.BAD_ENCODING


class TooSlowFault(FetchFault):
    """The body trickles."""

    code = ErrorCode.TOO_SLOW

    def __init__(self, rate: int) -> None:
        super().__init__(f"the body came at less than {rate} bytes a second")


class EarlyEndFault(FetchFault):
    """The connection ended, by a fault or within compressed data, where only its end marks one."""

    code = ErrorCode.TRUNCATED_BODY

    def __init__(self) -> None:
        super().__init__("the connection ended before the body was complete")


class DroppedError(aiohttp.ClientError):
    """The connection ended before a response began.

    Not one of the classes after which the HTTP library asks again by itself, at once and unpaced.
    """

    def __init__(self, cause: Exception, *, reused: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.reused = reused


class NoAnswerError(aiohttp.ClientError):
    """The request was sent, and no response header arrived in time."""


class Waits(NamedTuple):
    """What the request was given, for the messages."""

    total_s: float
    connect_s: float


def classify(error: Exception, *, answered: bool, waits: Waits) -> ErrorInfo:
    """Return the code and the message for ``error``.

    Args:
        error: What the request ended with.
        answered: Whether a response header had arrived.
        waits: The request's time limits.
    """
    cause = error.cause if isinstance(error, DroppedError) else error
    match cause:
        case TimeoutError() if answered:
            code = ErrorCode.TOTAL_TIMEOUT
            message = f"the body was not complete within {waits.total_s:g} s"
        case NoAnswerError() | aiohttp.SocketTimeoutError():
            code, message = ErrorCode.READ_TIMEOUT, f"no answer within {waits.total_s:g} s"
        case TimeoutError():
            code, message = ErrorCode.CONNECT_TIMEOUT, f"no connection within {waits.connect_s:g} s"
        case _:
            code, message = _describe(cause)
    # Header bytes that are no text must not reach a JSON record.
    return ErrorInfo(code=code, message=message.encode("utf-8", "replace").decode())


def is_stale_connection(error: Exception | None) -> bool:
    """Tell whether a kept connection ended before the answer, as idle ones may at any time."""
    return isinstance(error, DroppedError) and error.reused


def _describe(error: Exception) -> tuple[ErrorCode, str]:
    match error:
        case FetchFault():
            return error.code, str(error)
        case Exception() if type(error).__module__.split(".")[0] in _SOCKS_MODULES:
            return ErrorCode.CONNECT_FAILED, f"the proxy made no connection: {_line(str(error))}"
        case aiohttp.ClientConnectorError() | aiohttp.ServerFingerprintMismatch() | ssl.SSLError():
            return _describe_connect(error)
        case aiohttp.ClientHttpProxyError():
            return ErrorCode.CONNECT_FAILED, f"the proxy answered {error.status} to CONNECT"
        case aiohttp.ServerDisconnectedError():
            return ErrorCode.CONNECTION_RESET, "the server closed the connection without an answer"
        case aiohttp.ClientPayloadError():
            return _describe_payload(error)
        case aiohttp.ClientResponseError():
            # Its status is the library's own invention, not the server's.
            return ErrorCode.PROTOCOL_ERROR, f"not a valid HTTP response: {_line(error.message)}"
        case OSError():
            return _describe_os(error)
        case aiohttp.ClientError() | HttpProcessingError():
            return ErrorCode.PROTOCOL_ERROR, f"{type(error).__name__}: {_line(str(error))}"
    return ErrorCode.INTERNAL_ERROR, f"{type(error).__name__}: {_line(str(error))}"


def _describe_connect(error: Exception) -> tuple[ErrorCode, str]:
    if not isinstance(error, aiohttp.ClientConnectorError) or isinstance(
        error, aiohttp.ClientSSLError
    ):
        return ErrorCode.TLS_FAILED, f"no secure connection: {_tls_reason(error)}"
    cause = error.os_error
    match error:
        case aiohttp.ClientConnectorDNSError():
            if cause.errno in NO_SUCH_NAME:
                return ErrorCode.DNS_NOT_FOUND, "the host name does not exist"
            return ErrorCode.DNS_FAILED, f"the host name cannot be looked up: {_reason(cause)}"
        case aiohttp.ClientProxyConnectionError():
            return ErrorCode.CONNECT_FAILED, f"the proxy cannot be reached: {_reason(cause)}"
    match cause:
        case PrivateAddressFault():
            return cause.code, str(cause)
        case ConnectionRefusedError():
            return ErrorCode.CONNECT_REFUSED, "the host refused the connection"
        case TimeoutError():
            return ErrorCode.CONNECT_TIMEOUT, "the host did not answer"
    if cause.errno in _RESET and error._conn_key.is_ssl:  # noqa: SLF001 - told nowhere else
        # Not surely for good: it may be the host's way to say that it is too busy.
        return ErrorCode.CONNECTION_RESET, "no secure connection: the host ended the handshake"
    if cause.errno in _RESET | _OUT_OF_RESOURCES:
        return _describe_os(cause)
    return ErrorCode.CONNECT_FAILED, f"no connection: {_reason(cause)}"


def _describe_payload(error: aiohttp.ClientPayloadError) -> tuple[ErrorCode, str]:
    if isinstance(error.__cause__, ContentLengthError | TransferEncodingError):
        return EarlyEndFault.code, str(EarlyEndFault())
    return ErrorCode.PROTOCOL_ERROR, f"the body is not framed correctly: {_line(str(error))}"


def _describe_os(error: OSError) -> tuple[ErrorCode, str]:
    if error.errno in _OUT_OF_RESOURCES:
        return ErrorCode.INTERNAL_ERROR, f"this worker ran short of resources: {_reason(error)}"
    if error.errno in _RESET or isinstance(error, ConnectionError):
        return ErrorCode.CONNECTION_RESET, "the connection was reset"
    return ErrorCode.PROTOCOL_ERROR, f"{type(error).__name__}: {_reason(error)}"


def _tls_reason(error: Exception) -> str:
    cause = getattr(error, "certificate_error", error)
    told = getattr(cause, "verify_message", None) or getattr(cause, "reason", None) or str(cause)
    return _line(str(told))


def _reason(error: OSError) -> str:
    return _line(error.strerror or str(error) or type(error).__name__)


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
