"""The logger, imported when something is logged.

structlog takes longer to import than the rest of this package; a command that only lists jobs
should not pay for it.
"""

from __future__ import annotations

from typing import Any


def logger() -> Any:
    """Return structlog's logger."""
    import structlog  # noqa: PLC0415  # see the module's docstring

    return structlog.get_logger("coord")
