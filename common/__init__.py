"""What every program of crawlctl shares, layered: embedded > coord | frontier > runtime > web > model.

``coord`` is the only importer of the etcd client, ``frontier`` the only importer of redis.
"""
