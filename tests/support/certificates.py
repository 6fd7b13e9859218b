"""Certificates of an authority of our own, as files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme


class Certificates(NamedTuple):
    """Paths of PEM files: the authority's certificate, and a node's with its key."""

    ca: str
    cert: str
    key: str


def certificates(folder: Path) -> Certificates:
    """Make an authority and a certificate for this machine's loopback names."""
    folder.mkdir()
    authority = trustme.CA()
    node = authority.issue_cert("localhost", "127.0.0.1")
    files = Certificates(*(str(folder / f"{name}.pem") for name in Certificates._fields))
    authority.cert_pem.write_to_path(files.ca)
    node.private_key_pem.write_to_path(files.key)
    node.cert_chain_pems[0].write_to_path(files.cert)
    return files
