"""KV events for routers of other projects, in the form that vLLM publishes."""
