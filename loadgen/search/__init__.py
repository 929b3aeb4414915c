"""Which value to run next, from the results so far; pure policy that sends nothing itself."""
