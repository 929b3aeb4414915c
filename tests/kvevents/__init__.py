"""KV events: what others' routers read."""
