"""Decisions of the KV-cache pool: where a block belongs, what stays in memory, what a tenant may hold. Pure."""
