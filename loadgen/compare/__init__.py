"""How runs differ, with confidence: `loadgen compare`."""
