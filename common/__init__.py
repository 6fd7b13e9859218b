"""What every program of crawlctl shares: embedded > coord | frontier > runtime > web > model.

``coord`` is the only importer of the etcd client, ``frontier`` the only importer of redis.
"""
