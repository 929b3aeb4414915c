"""The `loadgen` command: flags in, exit status out."""
