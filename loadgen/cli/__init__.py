"""The `loadgen` command: flags in, exit code out."""
