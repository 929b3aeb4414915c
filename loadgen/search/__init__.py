"""Which value to run next, from the results so far; pure policy without sending."""
