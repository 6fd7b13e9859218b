"""``job delete``: only what is over, all of it, and never the id again."""

from __future__ import annotations

import pytest

from tests.support.site import Page, Site
from tests.system.conftest import Command

PAGES = {f"/{n}": Page(links=[f"/{n + 1}"]) for n in range(40)}
OPTIONS = ("--allow-private", "--shards", "4")


@pytest.mark.commands("job delete")
def test_a_job_that_is_over_is_deleted_with_all_it_had(up: Command) -> None:
    with Site(PAGES) as site:
        url = site.url("/0")
        quick = up("submit", url, *OPTIONS, "--delay", "0", "--id", "quick", "--wait")
        assert 0 == quick.code, quick.err
        assert 0 == up("submit", url, *OPTIONS, "--delay", "5", "--id", "slow").code
        refused = up("job", "delete", "slow")
        assert (4, True) == (refused.code, "job cancel slow" in refused.err)
        deleted = up("job", "delete", "quick")
        assert (0, True) == (deleted.code, "job quick is deleted" in deleted.err)
        assert ["slow"] == [job["id"] for job in up("jobs", "--json").json]
        assert (1, 1) == (up("job", "show", "quick").code, up("export", "quick").code)
        again = up("job", "delete", "quick")
        assert (0, True) == (again.code, "(0 keys)" in again.err)
        assert 4 == up("submit", url, *OPTIONS, "--id", "quick").code, "ids are never used again"
        assert 1 == up("job", "delete", "nothing").code
        # At once after a cancel, while a worker may still be at it.
        assert 0 == up("job", "cancel", "slow").code
        assert 0 == up("job", "delete", "slow").code
        assert [] == up("jobs", "--json").json
        doctor = up("doctor", "--json")
        assert 0 == doctor.code, doctor.out + doctor.err
