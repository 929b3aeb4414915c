"""One prefill, decode or aggregated instance."""
