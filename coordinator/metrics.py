"""What a master shows to Prometheus (``--http``)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class Metrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.term = Gauge(
            "crawlctl_master_term", "Term this process holds; 0 on standby.", registry=self.registry
        )
        self.demotions = Counter(
            "crawlctl_master_demotions", "Terms lost without resigning.", registry=self.registry
        )
        self.cycles = Counter(
            "crawlctl_master_cycles", "Cycles of observing and acting.", registry=self.registry
        )
        self.trouble = Counter(
            "crawlctl_master_trouble", "Cycles cut short, by the service that did not answer.",
            ["service"], registry=self.registry,
        )  # fmt: skip
        self.assigned = Gauge(
            "crawlctl_tasks_assigned", "Tasks in the published assignment.", registry=self.registry
        )
        self.locks = Gauge(
            "crawlctl_task_locks_held", "Task locks that are held.", registry=self.registry
        )
        self.waiting = Gauge(
            "crawlctl_jobs_without_worker", "Jobs that no worker takes tasks of.",
            registry=self.registry,
        )  # fmt: skip
        self.jobs = Gauge("crawlctl_jobs", "Jobs, by state.", ["state"], registry=self.registry)
