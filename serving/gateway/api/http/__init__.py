"""Parts that all routes share: access, keys, tenants, origins, errors."""
