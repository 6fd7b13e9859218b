"""Private servers and nodes on one machine, for ``crawl`` and ``up``.

How the command line uses it. A crawl in the foreground::

    with Folder.claim(path) as folder:                  # UsageError, RefusedError
        state = folder.load_state()                     # None, or what run the folder holds
        async with EmbeddedCluster.open(folder, workers=2) as cluster:
            cluster.endpoints.etcd, cluster.endpoints.redis     # for Settings
            await cluster.wait_failed()                 # beside the crawl; returns the error
            await cluster.nodes.drain(timeout_s=30)     # on Ctrl-C; also done on leaving
        folder.save_state(...)                          # folder.wipe() for --fresh, before open

``up`` and ``down``: ``start_background(UpRequest(...), os.environ)``, ``stop_background(cluster,
os.environ)``, ``running_up(cluster, os.environ)`` of :mod:`common.embedded.background`.

Modules: ``folder`` (who may use a folder, what it holds), ``binaries`` (finding the programs),
``servers`` (how they are run), ``keeper`` (the process that keeps them), ``keeping`` (that process
as seen from here), ``probes`` (are they up, are they ours), ``stack`` (both servers), ``nodes``
(master and workers), ``cluster`` (all of it), ``background`` (all of it, detached).

However the process that opened a cluster ends, kill -9 included, nothing it started survives it:
nodes and keeper see the end of their standard input, and the kernel ends servers with the keeper.
"""
