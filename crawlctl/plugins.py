"""The public API for plugins; see docs/plugins.md.

Everything else in crawlctl's packages may change without notice.
"""

from common.plugins.api import (
    JSON,
    Facts,
    Headers,
    JobInfo,
    Link,
    Links,
    Plugin,
    Request,
    Response,
)

__all__ = [
    "JSON",
    "Facts",
    "Headers",
    "JobInfo",
    "Link",
    "Links",
    "Plugin",
    "Request",
    "Response",
]
