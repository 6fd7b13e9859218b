"""The worker: owns tasks by their locks, fetches, parses and commits.

``program`` is the process, one session after the other; ``node`` is one session (membership, which
tasks to own); ``task`` runs one owned task; ``job`` holds what a process needs once per job;
``page`` takes one URL from claim to settlement; ``committer`` writes settlements, outlinks first.
"""

from worker.program import run

__all__ = ["run"]
