"""The path under which a proxy shows this server: pure ASGI, outermost, so that all else sees paths as they are here.

A proxy may take its prefix off or leave it on; both are understood.
"""

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPathMiddleware:
    """Takes the prefix off paths that begin with it.

    Args:
        root_path: such as `/llm`.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path
        self._raw = root_path.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on, with the path as it is here."""
        if scope["type"] == "http":
            path = scope["path"]
            if path == self._root_path or path.startswith(f"{self._root_path}/"):
                raw = scope.get("raw_path", b"").removeprefix(self._raw) or b"/"
                scope = {**scope, "path": path[len(self._root_path) :] or "/", "raw_path": raw}
        await self._app(scope, receive, send)
