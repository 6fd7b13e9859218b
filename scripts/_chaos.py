"""Runs the fault laboratory of this checkout against the *installed* packages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# This folder must not be imported from: pytest has a package of the name of a script here.
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != ROOT / "scripts"]
sys.path.append(str(ROOT))
os.environ["PYTHONSAFEPATH"] = "1"

if __name__ == "__main__":
    from tests.chaos.__main__ import main

    sys.exit(main())
