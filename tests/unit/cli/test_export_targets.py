"""Output never takes the place of anything but a regular file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from crawlctl.export.targets import replaced_file


class _StoppedError(Exception):
    """The writer stopped here."""


def _write_half(path: Path) -> None:
    with replaced_file(path) as file:
        file.write(b"half")
        raise _StoppedError


def test_a_file_is_replaced_only_when_all_of_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with pytest.raises(_StoppedError):
        _write_half(path)
    assert path.read_bytes() == b"old"
    with replaced_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_draft_left_by_a_killed_export_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with replaced_file(path) as file:  # what a killed one leaves; in a container pids repeat
        (left,) = tmp_path.iterdir()
        file.write(b"first")
        with replaced_file(path) as second:
            second.write(b"second")
        assert left.exists(), "a draft is removed by the export it belongs to"
    assert path.read_bytes() == b"first"


@pytest.mark.parametrize("exists", [True, False])
def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path: Path, exists: bool) -> None:
    target, link = tmp_path / "there" / "data", tmp_path / "link"
    target.parent.mkdir()
    if exists:
        target.write_bytes(b"old")
    link.symlink_to(target)
    with replaced_file(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_pipe_is_written_into_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    with replaced_file(path) as file:
        file.write(b"records")
    reader.join(10)
    assert read == [b"records"]
    assert path.is_fifo()


def test_a_link_to_a_device_is_written_into_and_both_stay(tmp_path: Path) -> None:
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"), replaced_file(link) as file:
        file.write(b"records")
    assert link.is_symlink()
    assert Path("/dev/full").is_char_device()


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), replaced_file(tmp_path):
        pass
