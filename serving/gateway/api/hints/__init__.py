"""KV hints over HTTP: what clients say about the cached prompts of their sessions.

kv_hints, cache_control, prompt_cache_*  ──►  a claim that travels with the order
                                         └─►  actions for the memory servers, whose outcomes are reported on request
"""
