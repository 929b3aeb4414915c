"""The endpoint's pages for people: a chat box at `/`, the API at `/docs`. Independent of routes and requests."""
