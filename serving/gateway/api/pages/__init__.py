"""The endpoint's pages for people: a chat box at `/`, the API at `/docs`. Nothing here knows routes or requests."""
