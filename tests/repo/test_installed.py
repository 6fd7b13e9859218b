"""``scripts/test`` tests what users install: the wheel, with all that belongs in it."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("crawlctl", "coordinator", "worker", "common")


@pytest.mark.parametrize("name", PACKAGES)
def test_the_package_under_test_is_the_one_meant(name: str) -> None:
    file = importlib.import_module(name).__file__
    assert file is not None
    is_source_tree = Path(file).resolve().parents[1] == CHECKOUT
    # Set by scripts/test; without it (plain pytest) the source tree is meant.
    assert is_source_tree == ("CRAWLCTL_TEST_INSTALLED" not in os.environ)


@pytest.mark.parametrize("name", PACKAGES)
def test_the_package_under_test_holds_every_file_of_the_checkout(name: str) -> None:
    file = importlib.import_module(name).__file__
    assert file is not None
    installed = Path(file).parent
    for source in (CHECKOUT / name).rglob("*"):
        if source.is_dir() or "__pycache__" in source.parts:
            continue
        copy = installed / source.relative_to(CHECKOUT / name)
        assert copy.exists(), f"{source.relative_to(CHECKOUT)} is not part of the wheel"
        assert copy.read_bytes() == source.read_bytes(), f"{copy} is not what the checkout holds"
