"""Path prefix under which a proxy exposes this server: pure ASGI, outermost, so that other layers see paths without it.

The proxy may or may not remove the prefix; both are supported.
"""

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPathMiddleware:
    """Removes the prefix from paths that start with it.

    Args:
        root_path: such as `/llm`.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path
        self._raw = root_path.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass HTTP requests on without the prefix, other scopes unchanged."""
        if scope["type"] == "http":
            path = scope["path"]
            if path == self._root_path or path.startswith(f"{self._root_path}/"):
                raw = scope.get("raw_path", b"").removeprefix(self._raw) or b"/"
                scope = {**scope, "path": path[len(self._root_path) :] or "/", "raw_path": raw}
        await self._app(scope, receive, send)
