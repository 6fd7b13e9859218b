"""Which character encoding an HTML document is in (WHATWG Encoding and HTML standards).

Order: byte order mark, ``charset`` of the Content-Type field, the document's own declaration,
UTF-8 if the bytes are that (the last character may be cut), else windows-1252. The declaration is
looked for the way browsers prescan: in the first 1024 bytes, and when none is there a little
further, as a browser's parser would still obey it. Nothing here raises on any input.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Charset(NamedTuple):
    """An encoding by both its names."""

    name: str
    """WHATWG name in lower case: what is recorded."""
    codec: str
    """Python codec that decodes it."""


UTF_8: Final = Charset("utf-8", "utf-8")
WINDOWS_1252: Final = Charset("windows-1252", "cp1252")

_SPACE: Final = b"\t\n\f\r "
_PRESCAN_BYTES: Final = 1024
_LATE_PRESCAN_BYTES: Final = 16_384
_BYTE_ORDER_MARKS: Final = (
    (b"\xef\xbb\xbf", UTF_8),
    (b"\xff\xfe", Charset("utf-16le", "utf-16-le")),
    (b"\xfe\xff", Charset("utf-16be", "utf-16-be")),
)

# WHATWG name, Python codec, labels beside the name itself.
_TABLE: Final = """
utf-8 utf-8 unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf8 x-unicode20utf8
ibm866 cp866 866 cp866 csibm866
iso-8859-2 iso8859_2 csisolatin2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 latin2
iso-8859-3 iso8859_3 csisolatin3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 latin3
iso-8859-4 iso8859_4 csisolatin4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 latin4
iso-8859-5 iso8859_5 csisolatincyrillic cyrillic iso-ir-144 iso8859-5 iso88595 iso_8859-5 \
iso_8859-5:1988
iso-8859-6 iso8859_6 arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 \
iso-8859-6-e iso-8859-6-i iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987
iso-8859-7 iso8859_7 csisolatingreek ecma-118 elot_928 greek greek8 iso-ir-126 iso8859-7 iso88597 \
iso_8859-7 iso_8859-7:1987 sun_eu_greek
iso-8859-8 iso8859_8 csiso88598e csisolatinhebrew hebrew iso-8859-8-e iso-ir-138 iso8859-8 \
iso88598 iso_8859-8 iso_8859-8:1988 visual
iso-8859-8-i iso8859_8 csiso88598i logical
iso-8859-10 iso8859_10 csisolatin6 iso-ir-157 iso8859-10 iso885910 l6 latin6
iso-8859-13 iso8859_13 iso8859-13 iso885913
iso-8859-14 iso8859_14 iso8859-14 iso885914
iso-8859-15 iso8859_15 csisolatin9 iso8859-15 iso885915 iso_8859-15 l9
iso-8859-16 iso8859_16
koi8-r koi8_r cskoi8r koi koi8 koi8_r
koi8-u koi8_u koi8-ru
macintosh mac_roman csmacintosh mac x-mac-roman
windows-874 cp874 dos-874 iso-8859-11 iso8859-11 iso885911 tis-620
windows-1250 cp1250 cp1250 x-cp1250
windows-1251 cp1251 cp1251 x-cp1251
windows-1252 cp1252 ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 \
iso8859-1 iso88591 iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii x-cp1252 x-user-defined
windows-1253 cp1253 cp1253 x-cp1253
windows-1254 cp1254 cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 \
iso_8859-9:1989 l5 latin5 x-cp1254
windows-1255 cp1255 cp1255 x-cp1255
windows-1256 cp1256 cp1256 x-cp1256
windows-1257 cp1257 cp1257 x-cp1257
windows-1258 cp1258 cp1258 x-cp1258
x-mac-cyrillic mac_cyrillic x-mac-ukrainian
gbk gb18030 chinese csgb2312 csiso58gb231280 gb2312 gb_2312 gb_2312-80 iso-ir-58 x-gbk
gb18030 gb18030
big5 big5hkscs big5-hkscs cn-big5 csbig5 x-x-big5
euc-jp euc_jp cseucpkdfmtjapanese x-euc-jp
iso-2022-jp iso2022_jp csiso2022jp
shift_jis cp932 csshiftjis ms932 ms_kanji shift-jis sjis windows-31j x-sjis
euc-kr cp949 cseuckr csksc56011987 iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 \
ksc_5601 windows-949
utf-16be utf-16-be unicodefffe
utf-16le utf-16-le csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16
"""
_BY_LABEL: Final = {
    label: Charset(name, codec)
    for name, codec, *labels in map(str.split, _TABLE.strip().splitlines())
    for label in (name, *labels)
}

_PARAMETER: Final = re.compile(
    r""";[\t\n\r ]*([^=;\t\n\r "]+)=(?:"((?:[^"\\]|\\.)*)"?|([^;]*))""", re.DOTALL
)
_COMMENT: Final = b"<!--"
_META: Final = re.compile(rb"<meta[\t\n\f\r /]", re.IGNORECASE)
_TAG: Final = re.compile(rb"</?[A-Za-z][^\t\n\f\r >]*")
_MARKUP: Final = re.compile(rb"<[!/?]")
_ATTRIBUTE: Final = re.compile(
    rb"""[\t\n\f\r /]*([^\t\n\f\r />][^\t\n\f\r />=]*)
    (?:[\t\n\f\r ]*(=)[\t\n\f\r ]*(?:"([^"]*)"|'([^']*)'|([^\t\n\f\r "'>][^\t\n\f\r >]*))?)?""",
    re.VERBOSE,
)
_IN_CONTENT: Final = re.compile(
    rb"""charset[\t\n\f\r ]*=[\t\n\f\r ]*(?:"([^"]*)"|'([^']*)'|([^\t\n\f\r ;"'][^\t\n\f\r ;]*))""",
    re.IGNORECASE,
)
_XML_DECLARATION: Final = re.compile(
    rb"""<\?xml[^>]{0,200}?encoding[\t\n\f\r ]*=[\t\n\f\r ]*["']([^"'>]{1,40})["']"""
)


def by_label(label: str) -> Charset | None:
    """Return the encoding of a label in any case, or None."""
    return _BY_LABEL.get(label.strip("\t\n\f\r ").lower())


def sniff(body: bytes, content_type: str | None) -> Charset:
    """Return the encoding of an HTML document."""
    for mark, charset in _BYTE_ORDER_MARKS:
        if body.startswith(mark):
            return charset
    return (
        _from_header(content_type)
        or _from_document(body[:_PRESCAN_BYTES])
        or _from_document(body[:_LATE_PRESCAN_BYTES])
        or _by_content(body)
    )


def without_mark(body: bytes) -> bytes:
    """Return the document without its byte order mark."""
    for mark, _ in _BYTE_ORDER_MARKS:
        if body.startswith(mark):
            return body[len(mark) :]
    return body


def _from_header(content_type: str | None) -> Charset | None:
    """Return the encoding of the first charset parameter, if it names one."""
    if content_type is None:
        return None
    for name, quoted, plain in _PARAMETER.findall(content_type):
        if name.lower() == "charset":
            return by_label(quoted or plain)
    return None


def _by_content(body: bytes) -> Charset:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return UTF_8 if _is_cut_character(body, error) else WINDOWS_1252
    return UTF_8


def _is_cut_character(body: bytes, error: UnicodeDecodeError) -> bool:
    """Tell whether nothing speaks against UTF-8 but that the end cuts a character in two.

    A short document may be in another encoding, and have this one character that is not ASCII.
    """
    is_cut = error.reason == "unexpected end of data"
    return is_cut and (len(body) > _PRESCAN_BYTES or not body[: error.start].isascii())


def _from_document(head: bytes) -> Charset | None:
    """Return the encoding that a document declares, or None."""
    lowered = head.lower()
    if b"charset" not in lowered and b"encoding" not in lowered:
        return None
    return _prescan(head) or _from_xml_declaration(head)


def _from_xml_declaration(head: bytes) -> Charset | None:
    declared = _XML_DECLARATION.match(head)
    return None if declared is None else _declared(declared[1])


def _declared(label: bytes) -> Charset | None:
    """Return the encoding meant by a declaration read as ASCII: UTF-16 cannot be true there."""
    charset = by_label(label.decode("latin-1"))
    return UTF_8 if charset is not None and charset.name.startswith("utf-16") else charset


def _prescan(head: bytes) -> Charset | None:
    """Walk over the tags of ``head`` without building a tree (HTML standard, 13.2.3.2)."""
    position = head.find(b"<")
    while position >= 0:
        if head.startswith(_COMMENT, position):
            end = head.find(b"-->", position + 2)
            position = len(head) if end < 0 else end + 3
        elif _META.match(head, position):
            attributes, position = _attributes(head, position + 5)
            charset = _of_meta(attributes)
            if charset is not None:
                return charset
        elif (tag := _TAG.match(head, position)) is not None:
            _, position = _attributes(head, tag.end())
        elif _MARKUP.match(head, position):
            end = head.find(b">", position)
            position = len(head) if end < 0 else end + 1
        else:
            position += 1
        position = head.find(b"<", position)
    return None


def _attributes(head: bytes, position: int) -> tuple[dict[bytes, bytes], int]:
    """Read the attributes of a tag; return them and where the tag ends.

    A tag that is cut off by the end of ``head`` has none: what it would say is not known.
    """
    attributes: dict[bytes, bytes] = {}
    while (found := _ATTRIBUTE.match(head, position)) is not None:
        name, equals, double, single, plain = found.groups()
        position = found.end()
        if position >= len(head):
            return {}, position
        if equals and double is single is plain is None and head[position] in b"\"'":
            return {}, len(head)  # a quote without its end
        attributes.setdefault(name.lower(), double or single or plain or b"")
    return attributes, position


def _of_meta(attributes: dict[bytes, bytes]) -> Charset | None:
    """Return the encoding a meta element declares, or None."""
    if b"charset" in attributes:
        return _declared(attributes[b"charset"])
    if attributes.get(b"http-equiv", b"").lower() != b"content-type":
        return None
    named = _IN_CONTENT.search(attributes.get(b"content", b""))
    return None if named is None else _declared(named[1] or named[2] or named[3] or b"")
