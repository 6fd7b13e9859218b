"""``doctor``: check services and invariants."""

from __future__ import annotations

import click

from crawlctl.framework import Command, json_option, run, settings_of


@click.command(cls=Command, examples=["crawlctl doctor", "crawlctl doctor --json --redis env:URL"])
@json_option
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool) -> int:
    """Check that the services can be reached and trusted, and that all URLs are accounted for.

    Exits 1 if a check failed and 3 if a service is unreachable; warnings are no failures.
    """
    from crawlctl.diagnosis import examine, exit_code
    from crawlctl.show import print_json, print_line

    settings = settings_of(ctx)
    findings = run(examine(settings))
    code = exit_code(findings)
    if as_json:
        checks = [finding._asdict() for finding in findings]
        print_json({"ok": code == 0, "settings": settings.shown(), "checks": checks})
        return code
    for finding in findings:
        print_line(f"{finding.status.value:<11} {finding.check}: {finding.detail}")
        if finding.remedy is not None:
            print_line(f"{'':<11}   -> {finding.remedy}")
    return code
