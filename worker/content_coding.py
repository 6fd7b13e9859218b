"""Undoes the content codings of a response body, within a bound.

Bodies are decoded here and not by the HTTP library, for three reasons: no call ever produces more
than the limit (a kilobyte can hold a gigabyte), codings may be stacked (``gzip, gzip``), and an
early end is told apart from bytes that do not follow the coding. gzip and deflate (with or without
the zlib header) are always understood; br and zstd where a decoder that can be bounded is there.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, Protocol

from worker.fetch_errors import BadEncodingFault, TooLargeFault

_MAX_STACKED: Final = 4
_MAX_MEMBERS: Final = 1000
"""Each further member takes its time: a long row of empty ones would be slow to read."""
_PIECE_BYTES: Final = 65_536
"""Handed to a member at once: what follows its end in there is copied, and an inner layer of a
stack has all that the layer around it gave, up to the limit."""
_ZSTD_WINDOW_LOG: Final = 23
"""8 MiB, the largest window allowed for zstd over HTTP (RFC 9659)."""
_REGISTERED: Final = frozenset(
    ("aes128gcm", "br", "compress", "dcb", "dcz", "exi", "pack200-gzip", "zstd")
)
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5"


class Decoder(Protocol):
    """Decodes one body, piece by piece."""

    @property
    def is_complete(self) -> bool:
        """Tell whether the end of the coded data has been seen."""

    def feed(self, data: bytes) -> bytes:
        """Return what ``data`` decodes to.

        Over all calls it gives about one byte more than the limit, so that the caller sees it, and
        is not to be called again then.

        Raises:
            BadEncodingFault: the bytes do not follow the coding.
            TooLargeFault: an inner layer alone is over the limit.
        """


class _Members:
    """A coding whose body is one compressed member, or several in a row (gzip, zstd).

    What follows the last member is ignored, as browsers do.
    """

    __slots__ = (
        "_count", "_ignores_rest", "_magic", "_member", "_new_member", "_pending", "_room",
        "is_complete",
    )  # fmt: skip

    def __init__(
        self, new_member: Callable[[bytes], Any], magic: bytes | None, limit_bytes: int
    ) -> None:
        self.is_complete = False
        self._new_member = new_member
        self._magic = magic
        self._room = limit_bytes + 1
        self._member: Any = None
        self._count = 0
        self._pending = b""
        self._ignores_rest = False

    def feed(self, data: bytes) -> bytes:
        if self._pending:
            data, self._pending = self._pending + data, b""
        parts: list[bytes] = []
        at = 0
        while at < len(data) and self._room > 0 and not self._ignores_rest:
            if self._member is None and not self._begin(data, at):
                break
            piece = data[at : at + _PIECE_BYTES]
            try:
                part = self._member.decompress(piece, self._room)
            except _DECODER_ERRORS as error:
                raise _undecodable(error) from error
            self._room -= len(part)
            parts.append(part)
            at += len(piece)
            if self._member.eof:
                at -= len(self._member.unused_data)
                self._member = None
                self.is_complete = True
        return b"".join(parts)

    def _begin(self, data: bytes, at: int) -> bool:
        if len(data) - at < 2:
            self._pending = data[at:]
            return False
        if self._count and (self._magic is None or not data.startswith(self._magic, at)):
            self._ignores_rest = True
            return False
        if self._count == _MAX_MEMBERS:
            raise BadEncodingFault("the body is made of too many compressed members")
        self._count += 1
        self.is_complete = False
        self._member = self._new_member(data[at : at + 2])
        return True


class _Brotli:
    __slots__ = ("_decompressor", "_room", "is_complete")

    def __init__(self, limit_bytes: int) -> None:
        self.is_complete = False
        self._decompressor = _BROTLI.Decompressor()
        self._room = limit_bytes + 1

    def feed(self, data: bytes) -> bytes:
        decoded = bytearray()
        while not self.is_complete and len(decoded) < self._room:
            try:
                decoded += self._decompressor.process(
                    data, output_buffer_limit=self._room - len(decoded)
                )
            except _DECODER_ERRORS as error:
                raise _undecodable(error) from error
            data = b""
            self.is_complete = self._decompressor.is_finished()
            if self._decompressor.can_accept_more_data():
                break
        self._room -= len(decoded)
        return bytes(decoded)


class _Stack:
    """Codings on top of each other; the outermost first."""

    def __init__(self, layers: Sequence[Decoder], limit_bytes: int) -> None:
        self._layers = layers
        self._limit_bytes = limit_bytes
        self._inner_bytes = [0] * len(layers)

    @property
    def is_complete(self) -> bool:
        return all(layer.is_complete for layer in self._layers)

    def feed(self, data: bytes) -> bytes:
        last = len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            data = layer.feed(data)
            self._inner_bytes[number] += len(data)
            if number < last and self._inner_bytes[number] > self._limit_bytes:
                raise TooLargeFault(self._limit_bytes)
        return data


def _first_module(*names: str) -> Any:
    for name in names:
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


_BROTLI: Final = _first_module("brotli")
_ZSTD: Final = _first_module("compression.zstd", "backports.zstd")


def _gzip_member(_data: bytes) -> Any:
    return zlib.decompressobj(zlib.MAX_WBITS | 16)


def _deflate_member(data: bytes) -> Any:
    has_zlib_header = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
    return zlib.decompressobj(zlib.MAX_WBITS if has_zlib_header else -zlib.MAX_WBITS)


def _zstd_member(_data: bytes) -> Any:
    options = {_ZSTD.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    return _ZSTD.ZstdDecompressor(options=options)


_DECODERS: Final[dict[str, Callable[[int], Decoder]]] = {
    "gzip": partial(_Members, _gzip_member, _GZIP_MAGIC),
    "deflate": partial(_Members, _deflate_member, None),
    # Brotli before 1.2 cannot bound what one call produces.
    **(
        {"br": _Brotli} if hasattr(_BROTLI and _BROTLI.Decompressor, "can_accept_more_data") else {}
    ),
    **({"zstd": partial(_Members, _zstd_member, _ZSTD_MAGIC)} if _ZSTD else {}),
}
_DECODER_ERRORS: Final = (
    zlib.error,
    *((_BROTLI.error,) if _BROTLI else ()),
    *((_ZSTD.ZstdError,) if _ZSTD else ()),
)

ACCEPT_ENCODING: Final = ", ".join(_DECODERS)
"""What to ask servers for."""


def codings_of(values: Sequence[str]) -> tuple[str, ...]:
    """Return the codings to undo out of Content-Encoding fields, in the order they were applied.

    Words that name no coding (``identity``, ``none``, ``utf-8``) are ignored, as browsers do.

    Raises:
        BadEncodingFault: a coding is not understood here, or too many are stacked.
    """
    if len(values) == 1 and values[0] in _DECODERS:
        return (values[0],)
    words = [
        word.strip().lower().removeprefix("x-") for value in values for word in value.split(",")
    ]
    unknown = [word for word in words if word in _REGISTERED and word not in _DECODERS]
    if unknown:
        raise BadEncodingFault(f"the body is in the coding {unknown[0]!r}, which was not asked for")
    codings = tuple(word for word in words if word in _DECODERS)
    if len(codings) > _MAX_STACKED:
        raise BadEncodingFault(f"{len(codings)} content codings are stacked on each other")
    return codings


def open_decoder(codings: Sequence[str], *, limit_bytes: int) -> Decoder:
    """Return what undoes these codings, applied in this order; at least one."""
    if len(codings) == 1:
        return _DECODERS[codings[0]](limit_bytes)
    return _Stack([_DECODERS[name](limit_bytes) for name in reversed(codings)], limit_bytes)


def _undecodable(error: Exception) -> BadEncodingFault:
    return BadEncodingFault(f"the body cannot be decoded: {error}")
