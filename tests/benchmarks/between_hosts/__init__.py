"""Both ends of `bench_between_hosts`, each on a separate host."""
