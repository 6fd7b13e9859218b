"""Hypothesis without deadlines: a busy machine is no bug of ours."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "crawlctl", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("crawlctl")
