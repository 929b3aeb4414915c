"""Load generator for OpenAI-compatible endpoints; speaks HTTP only and imports neither `serving` nor `hardware`."""
