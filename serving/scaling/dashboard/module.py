"""Module that Ray's dashboard loads in a process of its own; Ray forwards its routes after checking the token.

The dashboard's process, its fork server and its children import this file, so it imports little; a fork server must not
have threads. `site/sitecustomize.py` makes Ray import it. None of this is a public interface of Ray: a contract test
checks it against the pinned version.
"""

from functools import partial

from aiohttp import web
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled
from ray.dashboard.subprocesses.module import SubprocessModule, SubprocessModuleConfig
from ray.dashboard.subprocesses.routes import SubprocessRouteTable as routes

from serving.scaling.dashboard.answers import PoolsPort
from serving.scaling.dashboard.guard import Guard
from serving.scaling.dashboard.handlers import PoolsApi
from serving.scaling.dashboard.login import EXPERTS_PATH, LOGIN_PATH, PageLogin
from serving.scaling.dashboard.ray_port import RayPools, connect
from serving.values.scaling_operations import (
    DrainGroupRank,
    HoldPool,
    ReadDecisions,
    ReadEvents,
    ReadHistory,
    RebalanceGroup,
    ReleasePool,
    ResizeRankGroup,
    ScalePool,
)


class PoolsHead(SubprocessModule):
    """Routes `/pools`, `/experts`, `/api/pools` and `/api/experts`. Ray creates, runs and restarts it."""

    def __init__(self, config: SubprocessModuleConfig) -> None:
        super().__init__(config)
        self._api = PoolsApi(self.port(), Guard(controls=is_token_auth_enabled()), PageLogin(_token()))

    def port(self) -> PoolsPort:
        """Port to the running system of this cluster."""
        return RayPools(partial(connect, self.gcs_address))

    @routes.get("/pools")
    async def page(self, request: web.Request) -> web.Response:
        """The page."""
        return self._api.file("index.html")

    @routes.get(EXPERTS_PATH)
    async def experts_page(self, request: web.Request) -> web.Response:
        """The page of the experts."""
        return self._api.file("experts.html")

    @routes.get("/api/experts")
    async def experts(self, request: web.Request) -> web.Response:
        """Groups of ranks."""
        return await self._api.experts(request)

    @routes.get("/api/experts/rebalance")
    async def page_rebalance(self, request: web.Request) -> web.Response:
        """A rebalance, from the page."""
        return await self._api.by_page(request, RebalanceGroup)

    @routes.get("/api/experts/drain")
    async def page_drain(self, request: web.Request) -> web.Response:
        """Replacement of a rank without data loss, from the page."""
        return await self._api.by_page(request, DrainGroupRank)

    @routes.get("/api/experts/resize")
    async def page_resize(self, request: web.Request) -> web.Response:
        """Another number of ranks, from the page."""
        return await self._api.by_page(request, ResizeRankGroup)

    @routes.get(LOGIN_PATH)
    async def login(self, request: web.Request) -> web.Response:
        """A one-time pass for Ray's cookie."""
        return self._api.log_in(request)

    @routes.get("/pools/{file}")
    async def file(self, request: web.Request) -> web.Response:
        """Send the page's style or one of its scripts."""
        return self._api.file(request.match_info["file"])

    @routes.get("/api/pools")
    async def state(self, request: web.Request) -> web.Response:
        """State of the pools."""
        return await self._api.state(request)

    @routes.get("/api/pools/decisions")
    async def decisions(self, request: web.Request) -> web.Response:
        """Scaling decisions."""
        return await self._api.read(request, ReadDecisions, "decisions")

    @routes.get("/api/pools/events")
    async def events(self, request: web.Request) -> web.Response:
        """Events of instances and hosts."""
        return await self._api.read(request, ReadEvents, "events")

    @routes.get("/api/pools/history")
    async def history(self, request: web.Request) -> web.Response:
        """Samples of the last hour."""
        return await self._api.read(request, ReadHistory, "samples")

    @routes.post("/api/pools/{pool}/scale")
    async def post_scale(self, request: web.Request) -> web.Response:
        """A new target, from a script."""
        return await self._api.by_script(request, ScalePool)

    @routes.post("/api/v1/applications/cloudmatrix/deployments/{pool}/scale")
    async def ray_scale(self, request: web.Request) -> web.Response:
        """Ray's own route, for this application: the dashboard's router prefers the path with more literal segments."""
        return await self._api.by_ray(request)

    @routes.post("/api/pools/{pool}/hold")
    async def post_hold(self, request: web.Request) -> web.Response:
        """A hold, from a script."""
        return await self._api.by_script(request, HoldPool)

    @routes.delete("/api/pools/{pool}/hold")
    async def delete_hold(self, request: web.Request) -> web.Response:
        """The end of a hold, from a script."""
        return await self._api.by_script(request, ReleasePool)

    @routes.get("/api/pools/{pool}/scale")
    async def page_scale(self, request: web.Request) -> web.Response:
        """A new target, from the page."""
        return await self._api.by_page(request, ScalePool)

    @routes.get("/api/pools/{pool}/hold")
    async def page_hold(self, request: web.Request) -> web.Response:
        """A hold, from the page."""
        return await self._api.by_page(request, HoldPool)

    @routes.get("/api/pools/{pool}/release")
    async def page_release(self, request: web.Request) -> web.Response:
        """The end of a hold, from the page."""
        return await self._api.by_page(request, ReleasePool)


def _token() -> str:
    """Ray's token, available to every process of the cluster; empty = Ray requires none."""
    return next(iter(get_auth_headers_if_auth_enabled({}).values()), "").partition(" ")[2]
