"""Routes for operators: the cluster, the KV-cache pool, time lines."""
