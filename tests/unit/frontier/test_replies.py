"""What scripts answer, as values."""

from __future__ import annotations

import pytest

from common.frontier.job import shard_state
from common.frontier.replies import Refusal, ShardState, refusal_of
from common.model.errors import ScriptBug
from common.model.job import JobState


def test_ok_is_no_refusal() -> None:
    assert refusal_of([b"OK", 1], "claim") is None


@pytest.mark.parametrize("refusal", Refusal)
def test_a_refusal_is_a_value(refusal: Refusal) -> None:
    assert refusal_of([refusal.value.encode()], "claim") is refusal


def test_another_layout_version_names_the_remedy() -> None:
    with pytest.raises(ScriptBug, match=r"another version of crawlctl \(layout 7\); finish or"):
        refusal_of([b"VERSION", b"7"], "claim")


def test_an_unknown_answer_is_a_bug() -> None:
    with pytest.raises(ScriptBug, match="script claim: unexpected answer MAYBE"):
        refusal_of([b"MAYBE"], "claim")


@pytest.mark.parametrize("state", JobState)
def test_every_job_state_has_a_shard_state(state: JobState) -> None:
    is_closed = state.is_final and state is not JobState.CANCELLED
    assert (shard_state(state) is ShardState.CLOSED) == is_closed
