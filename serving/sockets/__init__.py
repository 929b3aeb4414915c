"""Parts that every socket between our processes shares: proof of the secret, TLS, ports, and bytes in bulk."""
