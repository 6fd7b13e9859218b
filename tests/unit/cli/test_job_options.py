"""Job options: one for each field of the spec, no more and no less."""

from __future__ import annotations

from typing import Any

import click
import pytest

from common.model.errors import UsageError
from common.model.job import JobSpec
from crawlctl.job_options import HELP, job_options, spec_from


def parsed(*arguments: str, **defaults: Any) -> JobSpec:
    """Return the spec a command with job options makes of these arguments."""
    found: list[JobSpec] = []

    @click.command()
    @job_options(**defaults)
    def command(**options: Any) -> None:
        found.append(spec_from(options, **defaults))

    command.main(list(arguments), standalone_mode=False)
    return found[0]


def test_every_field_of_the_spec_has_its_option() -> None:
    assert set(HELP) == set(JobSpec.__struct_fields__)


def test_without_options_the_spec_is_all_defaults() -> None:
    assert parsed() == JobSpec()


def test_a_command_may_have_defaults_of_its_own() -> None:
    assert parsed(shards=16).shards == 16
    assert parsed("--shards", "8", shards=16).shards == 8


def test_options_become_fields() -> None:
    spec = parsed(
        *("--scope", "domain", "--allow", "/a", "--allow", "/b", "--deny", r"\.pdf$"),
        *("--max-depth", "0", "--max-pages", "10", "--delay", "0.5", "--per-host", "4"),
        *("--per-ip", "8", "--per-domain", "6"),
        *("--header", "Accept-Language: de", "--cookie", "a=b", "--robots", "ignore"),
        *("--max-body", "1.5M", "--follow", "a, LINK", "--allow-private", "--seen", "bloom"),
    )
    assert spec == JobSpec(
        scope="domain",
        allow=("/a", "/b"),
        deny=(r"\.pdf$",),
        max_depth=0,
        max_pages=10,
        delay=0.5,
        per_host=4,
        per_ip=8,
        per_domain=6,
        header=("Accept-Language: de",),
        cookie=("a=b",),
        robots="ignore",
        max_body=1_500_000,
        follow=("a", "link"),
        allow_private=True,
        seen="bloom",
    )


@pytest.mark.parametrize(
    ("text", "size"), [("100", 100), ("500k", 500_000), ("16MB", 16_000_000), ("1g", 10**9)]
)
def test_sizes_have_suffixes(text: str, size: int) -> None:
    assert parsed("--max-body", text).max_body == size


@pytest.mark.parametrize("value", ["@/run/secret", "env:TOKEN", "Bearer x: y"])
def test_header_values_are_kept_as_given(value: str) -> None:
    assert parsed("--header", f"Authorization: {value}").header == (f"Authorization: {value}",)


@pytest.mark.parametrize(
    "option",
    ["--max-depth", "--max-pages", "--max-pages-per-host", "--max-body", "--priority"],
)
@pytest.mark.parametrize("digits", [str(2**53), "9" * 400])
def test_numbers_that_not_every_reader_can_hold_are_refused(option: str, digits: str) -> None:
    with pytest.raises((UsageError, click.BadParameter), match=f".* out of range.* to {2**53 - 1}"):
        parsed(option, digits)
    assert parsed(option, str(2**53 - 1)) != JobSpec()


def test_times_of_visits_may_have_units() -> None:
    spec = parsed("--recrawl", "6h", "--recrawl-min", "90", "--recrawl-max", "1.5d")
    assert (spec.recrawl, spec.recrawl_min, spec.recrawl_max) == (21_600.0, 90.0, 129_600.0)
    assert parsed("--recrawl", "8m").recrawl_bounds == (60.0, 3840.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--recrawl", "often"), "--recrawl: 'often' is not a time; write .* 6h or 1d, from 1s to"),
        (("--recrawl", "-1"), "--recrawl: '-1' is not a time; write .* 6h or 1d, from 1s to 3650d"),
        (("--recrawl", "0"), "--recrawl: 0s is out of range; .* from 1s to 3650d, as in 6h"),
        (("--recrawl", "3651d"), "--recrawl: 3651d is out of range; .* 1s to 3650d, as in 6h"),
        (("--recrawl-max", "1d"), "--recrawl-max: .* as in --recrawl 6h --recrawl-max 1d"),
        (("--recrawl-min", "1h"), "--recrawl-min: .* as in --recrawl 6h --recrawl-min 1h"),
        (
            ("--recrawl", "1h", "--recrawl-min", "2h"),
            "--recrawl-min: 2h is out of range; give a time from 1s to 1h .--recrawl is 1h., as in",
        ),
        (
            ("--recrawl", "90", "--recrawl-max", "1m"),
            "--recrawl-max: 1m is out of range; give a time from 90s to 3650d .--recrawl is 90s.",
        ),
    ],
)
def test_times_of_visits_that_make_no_sense_are_refused(
    arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        parsed(*arguments)
