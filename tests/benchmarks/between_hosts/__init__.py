"""Both ends of `bench_between_hosts`, each in a host of its own."""
