"""Seeds: checked before anything else, streamed, bad lines told with their number."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from common.model.errors import UsageError
from crawlctl.seeds import CHUNK, Collected, chunks, collect
from tests.unit.cli.calling import checkout_environment


def collected(
    *urls: str, file: Path | None = None, allow_private: bool = False
) -> tuple[Collected, list[str]]:
    spool = io.BytesIO()
    found = collect(urls, str(file) if file else None, spool, allow_private=allow_private)
    spool.seek(0)
    return found, [url for chunk in chunks(spool) for url in chunk]


def seed_file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "seeds.txt"
    path.write_bytes(content)
    return path


def test_arguments_and_lines_become_canonical_urls(tmp_path: Path) -> None:
    file = seed_file(tmp_path, b"\xef\xbb\xbf# mine\r\n\r\n  HTTP://B.example \r\nc.example/x#y\n")
    found, urls = collected("a.example", file=file)
    assert urls == ["http://a.example/", "http://b.example/", "http://c.example/x"]
    assert (found.good, found.bad) == (3, 0)


def test_bad_lines_are_told_and_the_rest_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = seed_file(
        tmp_path,
        b"http://a.example/\nftp://b.example/\nhttp://[/\n\xff\xfe\n"
        b"http://x.example/%s\nhttp://c.example/" % (b"a" * 200_000),
    )
    found, urls = collected(file=file)
    err = capsys.readouterr().err
    assert urls == ["http://a.example/", "http://c.example/"]
    assert (found.good, found.bad) == (2, 4)
    assert [line.split(": ")[1] for line in err.splitlines()] == [
        f"{file}, line {number}" for number in (2, 3, 4, 5)
    ]
    assert all(len(line) < 400 for line in err.splitlines())


def test_a_flood_of_bad_lines_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = seed_file(tmp_path, b"http://a.example/\n" + b"gopher://x/\n" * 100)
    found, _ = collected(file=file)
    lines = capsys.readouterr().err.splitlines()
    assert found.bad == 100
    assert len(lines) == 21
    assert lines[-1].endswith("80 more bad lines")


def test_a_file_without_a_usable_line_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no usable seed"):
        collected(file=seed_file(tmp_path, b"# nothing\n\n"))


def test_a_bad_argument_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="'ftp'"):
        collected("http://a.example/", "ftp://b.example/")


@pytest.mark.parametrize(
    "seed",
    [
        *("http://127.0.0.1/", "http://0x7f.1/", "localhost", "http://[::1]:80/", "10.0.0.1"),
        *("https://a.b.localhost:8443/x", "LOCALHOST.", "http://u:p@127.1:80/", "169.254.169.254."),
        *("http://2130706433/", "http://%31%32%37.0.0.1/", "http://[fe80::1]/"),
    ],
)
def test_a_private_seed_needs_its_option(tmp_path: Path, seed: str) -> None:
    for urls, file in (((seed,), None), ((), seed_file(tmp_path, seed.encode()))):
        with pytest.raises(UsageError, match="--allow-private"):
            collected(*urls, file=file)
        assert collected(*urls, file=file, allow_private=True)[0].good == 1


@pytest.mark.parametrize(
    "seed", ["8.8.8.8", "http://localhost.example/", "notlocalhost", "http://10.0.0.1.example/x"]
)
def test_a_public_seed_that_looks_like_a_private_one_needs_none(seed: str) -> None:
    assert collected(seed)[0].good == 1


def test_the_digest_is_that_of_the_canonical_seeds_in_order(tmp_path: Path) -> None:
    file = seed_file(tmp_path, b"http://a.example/\nhttp://b.example/\n")
    assert collected("a.example", "HTTP://b.example/")[0].sha256 == collected(file=file)[0].sha256
    assert collected("b.example", "a.example")[0].sha256 != collected(file=file)[0].sha256


def test_chunks_are_full_but_the_last() -> None:
    spool = io.BytesIO(b"".join(b"http://h/%d\n" % number for number in range(CHUNK * 2 + 1)))
    assert [len(chunk) for chunk in chunks(spool)] == [CHUNK, CHUNK, 1]


def test_many_seeds_take_no_memory(tmp_path: Path) -> None:
    """A seeds file of 20 MB raises the peak of a process by far less than its size."""
    file = tmp_path / "many.txt"
    with file.open("w") as lines:
        for number in range(200_000):
            lines.write(f"http://host{number % 977}.example/{'x' * 80}/{number}\n")
    code = """
import resource, sys, tempfile
from crawlctl.seeds import chunks, collect
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with tempfile.TemporaryFile() as spool:
    collect(["http://warm.example/"], None, spool, allow_private=False)
    before = peak()
    spool.seek(0)
    spool.truncate()
    assert collect([], sys.argv[1], spool, allow_private=False).good == 200_000
    spool.seek(0)
    assert sum(map(len, chunks(spool))) == 200_000
    print(peak() - before)
"""
    answer = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        env=checkout_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(answer.stdout) * unit < 4_000_000
