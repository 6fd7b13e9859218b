"""Undoes the content codings of a response body, within a bound.

Bodies are decoded here and not by the HTTP library, for three reasons: no call ever produces more
than the limit (a kilobyte can hold a gigabyte), codings may be stacked (``gzip, gzip``), and an
early end is told apart from bytes that do not follow the coding. gzip and deflate (with or without
the zlib header) are always understood; br and zstd where a decoder that can be bounded is there.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final, Protocol

from worker.fetch_errors import BadEncodingFault, TooLargeFault

_MAX_STACKED: Final = 4
_MAX_MEMBERS: Final = 1000
"""Each further member copies what follows it: a long row of empty ones would be slow to read."""
_ZSTD_WINDOW_LOG: Final = 23
"""8 MiB, the largest window allowed for zstd over HTTP (RFC 9659)."""
_REGISTERED: Final = frozenset(
    ("aes128gcm", "br", "compress", "dcb", "dcz", "exi", "pack200-gzip", "zstd")
)
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5"


class _Layer(Protocol):
    is_complete: bool

    def feed(self, data: bytes, room: int) -> bytes: ...


class _Members:
    """A coding whose body is one compressed member, or several in a row (gzip, zstd).

    What follows the last member is ignored, as browsers do.
    """

    def __init__(self, new_member: Callable[[bytes], Any], *, magic: bytes | None) -> None:
        self.is_complete = False
        self._new_member = new_member
        self._magic = magic
        self._member: Any = None
        self._count = 0
        self._pending = b""
        self._ignores_rest = False

    def feed(self, data: bytes, room: int) -> bytes:
        """Return the next decoded bytes, ``room`` at most; what does not fit is given up."""
        data = self._pending + data if self._pending else data
        self._pending = b""
        parts: list[bytes] = []
        while data and room > 0 and not self._ignores_rest:
            if self._member is None and not self._begin(data):
                break
            part = self._member.decompress(data, room)
            parts.append(part)
            room -= len(part)
            if not self._member.eof:
                break
            data = self._member.unused_data
            self._member = None
            self.is_complete = True
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _begin(self, data: bytes) -> bool:
        if len(data) < 2:
            self._pending = data
            return False
        if self._count and (self._magic is None or not data.startswith(self._magic)):
            self._ignores_rest = True
            return False
        if self._count == _MAX_MEMBERS:
            raise BadEncodingFault("the body is made of too many compressed members")
        self._count += 1
        self.is_complete = False
        self._member = self._new_member(data)
        return True


class _Brotli:
    def __init__(self, decompressor: Any) -> None:
        self.is_complete = False
        self._decompressor = decompressor

    def feed(self, data: bytes, room: int) -> bytes:
        """Return the next decoded bytes, about ``room`` at most; what does not fit is given up."""
        decoded = bytearray()
        while not self.is_complete and len(decoded) < room:
            decoded += self._decompressor.process(data, output_buffer_limit=room - len(decoded))
            data = b""
            self.is_complete = self._decompressor.is_finished()
            if self._decompressor.can_accept_more_data():
                break
        return bytes(decoded)


def _deflate_member(data: bytes) -> Any:
    has_zlib_header = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
    return zlib.decompressobj(zlib.MAX_WBITS if has_zlib_header else -zlib.MAX_WBITS)


def _first_module(*names: str) -> Any:
    for name in names:
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


_BROTLI: Final = _first_module("brotli")
_ZSTD: Final = _first_module("compression.zstd", "backports.zstd")


def _gzip() -> _Layer:
    return _Members(lambda _: zlib.decompressobj(zlib.MAX_WBITS | 16), magic=_GZIP_MAGIC)


def _deflate() -> _Layer:
    return _Members(_deflate_member, magic=None)


def _brotli() -> _Layer:
    return _Brotli(_BROTLI.Decompressor())


def _zstd() -> _Layer:
    options = {_ZSTD.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    return _Members(lambda _: _ZSTD.ZstdDecompressor(options=options), magic=_ZSTD_MAGIC)


_LAYERS: Final[dict[str, Callable[[], _Layer]]] = {
    "gzip": _gzip,
    "deflate": _deflate,
    # Brotli before 1.2 cannot bound what one call produces.
    **(
        {"br": _brotli} if hasattr(_BROTLI and _BROTLI.Decompressor, "can_accept_more_data") else {}
    ),
    **({"zstd": _zstd} if _ZSTD else {}),
}
_DECODER_ERRORS: Final = (
    zlib.error,
    *((_BROTLI.error,) if _BROTLI else ()),
    *((_ZSTD.ZstdError,) if _ZSTD else ()),
)

ACCEPT_ENCODING: Final = ", ".join(_LAYERS)
"""What to ask servers for."""


def codings_of(values: Sequence[str]) -> tuple[str, ...]:
    """Return the codings to undo out of Content-Encoding fields, in the order they were applied.

    Words that name no coding (``identity``, ``none``, ``utf-8``) are ignored, as browsers do.

    Raises:
        BadEncodingFault: a coding is not understood here, or too many are stacked.
    """
    words = [
        word.strip().lower().removeprefix("x-") for value in values for word in value.split(",")
    ]
    unknown = [word for word in words if word in _REGISTERED and word not in _LAYERS]
    if unknown:
        raise BadEncodingFault(f"the body is in the coding {unknown[0]!r}, which was not asked for")
    codings = tuple(word for word in words if word in _LAYERS)
    if len(codings) > _MAX_STACKED:
        raise BadEncodingFault(f"{len(codings)} content codings are stacked on each other")
    return codings


class Decoder:
    """Decodes one body; gives at most one byte more than ``limit``, so that the caller sees it."""

    def __init__(self, codings: Sequence[str], *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._layers = [_LAYERS[name]() for name in reversed(codings)]
        self._rooms = [limit_bytes + 1] * len(self._layers)

    @property
    def is_complete(self) -> bool:
        """Tell whether every layer has seen its end."""
        return all(layer.is_complete for layer in self._layers)

    def feed(self, data: bytes) -> bytes:
        """Return what ``data`` decodes to; not to be called again once over the limit.

        Raises:
            BadEncodingFault: the bytes do not follow the coding.
            TooLargeFault: an inner layer alone is over the limit.
        """
        last = len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            try:
                data = layer.feed(data, self._rooms[number])
            except _DECODER_ERRORS as error:
                raise BadEncodingFault(f"the body cannot be decoded: {error}") from error
            self._rooms[number] -= len(data)
            if number < last and self._rooms[number] <= 0:
                raise TooLargeFault(self._limit_bytes)
        return data
