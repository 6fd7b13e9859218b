"""Plugins: what they are given and may give back (``api``), and where they come from (``loading``).

Users import the names of ``api`` from ``crawlctl.plugins``. Whoever runs their hooks is the worker.
"""
