"""Runs pytest on the tests of this checkout against the *installed* packages.

Run as ``python -I _pytest.py ARGUMENTS`` in the environment they are installed in. The checkout is
the last place to import from: it gives the tests their support modules, never the code under test.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

os.chdir(ROOT)
sys.path.append(str(ROOT))
# Processes started by tests import from the same places, wherever they are started.
os.environ["PYTHONSAFEPATH"] = "1"
os.environ["CRAWLCTL_TEST_INSTALLED"] = "1"
# The setting that puts the checkout first is for runs without an installation.
sys.exit(pytest.main(["-o", "pythonpath=", *sys.argv[1:]]))
