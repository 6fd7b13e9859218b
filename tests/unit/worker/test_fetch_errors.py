"""Every exception of the HTTP library has a code."""

from __future__ import annotations

import errno
import socket
import ssl

import aiohttp
import pytest
from aiohttp.client_exceptions import UnixClientConnectorError
from aiohttp.client_reqrep import ConnectionKey, RequestInfo
from aiohttp.http_exceptions import (
    BadHttpMessage,
    BadStatusLine,
    ContentLengthError,
    TransferEncodingError,
)
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from common.web.retry import ERROR_CODES, ErrorCode
from worker.fetch_errors import (
    BadEncodingFault,
    DroppedError,
    EarlyEndFault,
    FetchFault,
    InvalidLocationFault,
    NoAnswerError,
    PrivateAddressFault,
    RefusedTypeFault,
    TooLargeFault,
    Waits,
    classify,
    is_stale_connection,
)

WAITS = Waits(total_s=30.0, connect_s=10.0)
KEY = ConnectionKey("h.test", 80, False, True, None, None, None)
INFO = RequestInfo(URL("http://h.test/"), "GET", CIMultiDictProxy(CIMultiDict()))
REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
PROXY_ANSWER = aiohttp.ClientHttpProxyError(INFO, (), status=403, message="Forbidden")
NO_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")

LIBRARY: dict[Exception, str] = {
    aiohttp.ClientError("x"): "protocol_error",
    aiohttp.ClientConnectionError("Connection closed"): "protocol_error",
    aiohttp.ClientConnectionResetError("Cannot write"): "connection_reset",
    aiohttp.ClientOSError(errno.ECONNRESET, "reset"): "connection_reset",
    aiohttp.ClientConnectorError(KEY, REFUSED): "connect_refused",
    aiohttp.ClientConnectorDNSError(KEY, NO_NAME): "dns_not_found",
    aiohttp.ClientProxyConnectionError(KEY, REFUSED): "connect_failed",
    UnixClientConnectorError("/sock", KEY, REFUSED): "connect_refused",
    aiohttp.ClientSSLError(KEY, OSError(1, "handshake")): "tls_failed",
    aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, "handshake")): "tls_failed",
    aiohttp.ClientConnectorCertificateError(KEY, ssl.CertificateError("expired")): "tls_failed",
    aiohttp.ServerFingerprintMismatch(b"a", b"b", "h.test", 443): "tls_failed",
    aiohttp.ServerConnectionError("x"): "protocol_error",
    aiohttp.ServerDisconnectedError(): "connection_reset",
    aiohttp.ServerTimeoutError("x"): "connect_timeout",
    aiohttp.ConnectionTimeoutError("x"): "connect_timeout",
    aiohttp.SocketTimeoutError("x"): "read_timeout",
    aiohttp.ClientResponseError(INFO, (), status=400, message="Bad\n status"): "protocol_error",
    aiohttp.ContentTypeError(INFO, ()): "protocol_error",
    aiohttp.WSServerHandshakeError(INFO, ()): "protocol_error",
    PROXY_ANSWER: "connect_failed",
    aiohttp.TooManyRedirects(INFO, ()): "protocol_error",
    aiohttp.ClientPayloadError("x"): "protocol_error",
    aiohttp.InvalidURL("x"): "protocol_error",
    aiohttp.InvalidUrlClientError("x"): "protocol_error",
    aiohttp.RedirectClientError("x"): "protocol_error",
    aiohttp.NonHttpUrlClientError("x"): "protocol_error",
    aiohttp.InvalidUrlRedirectClientError("x"): "protocol_error",
    aiohttp.NonHttpUrlRedirectClientError("x"): "protocol_error",
}
NEWER = {"UploadAbortedError"}
"""Classes that not every supported version of the library has; they keep the default code."""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def subclasses(parent: type[Exception]) -> set[type[Exception]]:
    found = {parent}
    for child in parent.__subclasses__():
        found |= subclasses(child)
    return {one for one in found if one.__module__.startswith("aiohttp.")}


def code(error: Exception, *, answered: bool = False) -> str:
    return str(classify(error, answered=answered, waits=WAITS).code)


@pytest.mark.parametrize(("error", "expected"), LIBRARY.items(), ids=lambda one: type(one).__name__)
def test_error_of_the_library_has_its_code(error: Exception, expected: str) -> None:
    assert code(error) == expected


def test_every_error_of_the_library_is_listed_here() -> None:
    known = {type(error).__name__ for error in LIBRARY} | NEWER

    assert {one.__name__ for one in subclasses(aiohttp.ClientError)} <= known


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (aiohttp.ClientConnectorError(KEY, PrivateAddressFault()), "private_address"),
        (aiohttp.ClientConnectorError(KEY, OSError(errno.ENETUNREACH, "x")), "connect_failed"),
        (aiohttp.ClientConnectorError(KEY, OSError(errno.EHOSTUNREACH, "x")), "connect_failed"),
        (aiohttp.ClientConnectorError(KEY, OSError("Multiple exceptions")), "connect_failed"),
        (aiohttp.ClientConnectorError(KEY, OSError(errno.ETIMEDOUT, "x")), "connect_timeout"),
        (aiohttp.ClientConnectorError(KEY, OSError(errno.ECONNRESET, "x")), "connection_reset"),
        (aiohttp.ClientConnectorError(KEY, OSError(errno.EMFILE, "x")), "internal_error"),
        (
            aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_AGAIN, "again")),
            "dns_failed",
        ),
        (
            aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_FAIL, "failed")),
            "dns_failed",
        ),
        (caused(aiohttp.ClientPayloadError("x"), ContentLengthError("x")), "truncated_body"),
        (caused(aiohttp.ClientPayloadError("x"), TransferEncodingError("x")), "truncated_body"),
        (caused(aiohttp.ClientPayloadError("x"), ValueError("x")), "protocol_error"),
        (DroppedError(aiohttp.ServerDisconnectedError(), reused=True), "connection_reset"),
        (DroppedError(aiohttp.ClientOSError(errno.EPIPE, "x"), reused=False), "connection_reset"),
        (DroppedError(ssl.SSLError(1, "bad record"), reused=False), "tls_failed"),
        (NoAnswerError(), "read_timeout"),
        (TimeoutError(), "connect_timeout"),
        (ConnectionResetError(), "connection_reset"),
        (BrokenPipeError(errno.EPIPE, "x"), "connection_reset"),
        (OSError(errno.EIO, "x"), "protocol_error"),
        (BadHttpMessage("x"), "protocol_error"),
        (BadStatusLine("x"), "protocol_error"),
        (RuntimeError("Session is closed"), "internal_error"),
        (AssertionError(), "internal_error"),
        (UnicodeError("x"), "internal_error"),
    ],
)
def test_error_is_told_by_its_cause(error: Exception, expected: str) -> None:
    assert code(error) == expected


@pytest.mark.parametrize(
    "error", [TimeoutError(), aiohttp.ServerTimeoutError("x"), aiohttp.SocketTimeoutError("x")]
)
def test_time_limit_after_the_header_is_that_of_the_whole(error: Exception) -> None:
    found = classify(error, answered=True, waits=WAITS)

    assert found.code == ErrorCode.TOTAL_TIMEOUT
    assert found.message == "the body was not complete within 30 s"


@pytest.mark.parametrize(
    "fault",
    [
        PrivateAddressFault(),
        InvalidLocationFault("x"),
        RefusedTypeFault("x"),
        TooLargeFault(10),
        BadEncodingFault("x"),
        EarlyEndFault(),
    ],
)
def test_fault_found_here_has_its_own_code_and_words(fault: FetchFault) -> None:
    found = classify(fault, answered=True, waits=WAITS)

    assert (found.code, found.message) == (fault.code, str(fault))
    assert fault.code in ERROR_CODES


def test_message_can_be_stored_and_is_one_short_line() -> None:
    sent = b"\xff\xfe caf\xe9\n".decode("utf-8", "surrogateescape") * 1000
    error = aiohttp.ClientResponseError(INFO, (), status=400, message=sent)
    found = classify(error, answered=False, waits=WAITS)

    assert found.message.encode().decode() == found.message
    assert "\n" not in found.message
    assert len(found.message) < 400


def test_status_invented_by_the_library_is_not_shown() -> None:
    error = aiohttp.ClientResponseError(INFO, (), status=400, message="Bad status line")

    assert classify(error, answered=False, waits=WAITS).message == (
        "not a valid HTTP response: Bad status line"
    )


def test_only_a_drop_of_a_kept_connection_is_stale() -> None:
    drop = aiohttp.ServerDisconnectedError()

    assert is_stale_connection(DroppedError(drop, reused=True))
    assert not is_stale_connection(DroppedError(drop, reused=False))
    assert not is_stale_connection(drop)
    assert not is_stale_connection(None)


def test_library_does_not_ask_again_after_a_drop() -> None:
    """It does so, at once, after the two classes named here."""
    asked_again = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)

    assert not issubclass(DroppedError, asked_again)
