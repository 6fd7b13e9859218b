"""What a process needs around its work: settings, secrets, logs, clock, signals, health.

Nothing here knows of jobs, etcd or Redis. Modules are imported one by one, where they are used, so
that a short command does not pay for what only a long-running node needs.
"""
