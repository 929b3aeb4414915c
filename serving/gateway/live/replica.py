"""The ingress replica: the HTTP API over the live pools, served by uvicorn in this process or by Serve's proxy."""

import asyncio
import gc
import logging
import uuid
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from serving.cluster.identity import SocketKeeper
from serving.cluster.logs import log_beside_serve
from serving.cluster.membership import Member, MemberReader, post_order
from serving.cluster.model_parcels import with_model_here
from serving.cluster.nodes import link_host
from serving.cluster.ray_metrics import RayMetrics, expert_facts, instance_stats, serve_place
from serving.cluster.serve_replicas import keep_on_loopback
from serving.cluster.shutdown import ANNOUNCE_S
from serving.config.serve import ServeConfig
from serving.config.simulated_cost import accounted_kv
from serving.config.upgrade import with_live
from serving.deadline import within
from serving.gateway.api.admin.cluster_routes import (
    OrderedGroup,
    choose_group,
    cluster_router,
    expert_router,
    group_size_router,
)
from serving.gateway.api.admin.timeline_routes import timeline_router
from serving.gateway.api.app import create_app
from serving.gateway.api.http.access import GatewayDrain, WithoutRequestId
from serving.gateway.api.running_requests import RunningRequests
from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, model_root
from serving.gateway.core.from_config import hint_limits
from serving.gateway.live.backend import MEMBERS_PERIOD_S, LiveBackend
from serving.gateway.live.batch_places import batch_runner, batch_shelf
from serving.gateway.live.connections import connection_limits
from serving.gateway.live.fingerprint import system_fingerprint
from serving.gateway.live.gateway_http_server import IDLE_S, CurrentApp, make_http_server
from serving.gateway.live.gateway_peers import GatewayPeers
from serving.gateway.live.kv_hints import LiveKvHints, pause_desk
from serving.gateway.live.memory_links import MemoryLinks, Prefetcher
from serving.gateway.live.pool_admin import LivePoolAdmin
from serving.gateway.live.pool_links import FACTS_S
from serving.gateway.live.prefix_finder import LivePrefixFinder
from serving.gateway.live.response_places import response_limits, stored_responses, work_limits
from serving.gateway.live.sealing import unsealed
from serving.gateway.live.status import cluster_status, current_facts, host_labels, ordered_groups, state_of
from serving.gateway.live.timelines import SharedTimelines, TraceExporter, wished
from serving.gateway.live.traffic_report import MeteredBackend, TrafficReporter
from serving.group.core.expert_status import expert_status, group_stats
from serving.ids import GatewayId, NodeId
from serving.kvpool.core.pool_facts import memory_server_stats
from serving.kvpool.live.pool_control import NamespaceChanges, PoolViewFollower
from serving.kvpool.live.server_link import hello_of
from serving.model.dense_form import served_architecture
from serving.sockets.host_names import ANY, AllowedHosts, in_header, is_loopback
from serving.telemetry.metrics import GatewayMetrics
from serving.telemetry.ray_board import gateway_series
from serving.values.group import OperatorOrder, OrderAnswer
from serving.values.pool_view import namespace_salt
from serving.values.traffic import TrafficMeter
from serving.version import VERSION

logger = logging.getLogger(__name__)

LEAST_MEMBERS_PERIOD_S = 0.02
LINKS_S = 2.0
"""How long a gateway that joins a running system waits for its links before it accepts requests."""
ORDER_DEADLINE_S = 10.0
"""An instance polls for commands every half second; a dead one is replaced within seconds."""
LEAVE_S = 10.0 + IDLE_S
"""Serve waits 2 s before it shuts a gateway down, and connections are closed after their last stream."""


class GatewayDeployment:
    """One gateway as the ingress replica of the application.

    Args:
        config: sealed.
        pools: handles of the engine pools; bound so that they belong to the same application.
        pool_salt: namespaces' salts are derived from it; the same for all gateways, known to them only.
        created: start of the application [Unix time, s]; the same for all gateways, whenever they start.
        kvcache, autoscaler: handles of the memory servers and of the autoscaler, bound for the same reason as `pools`.
        dashboard_url: of Ray's dashboard; empty = unknown.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        config: ServeConfig,
        secret: str,
        pools: dict[str, DeploymentHandle[Any]],
        pool_salt: bytes,
        created: int,
        kvcache: DeploymentHandle[Any] | None = None,
        autoscaler: DeploymentHandle[Any] | None = None,
        dashboard_url: str = "",
    ) -> None:
        log_beside_serve(config.cluster.log_format)
        keep_on_loopback()
        self._config = config = await asyncio.to_thread(with_model_here, config)
        self._keeper = SocketKeeper(secret)
        await self._keeper.refresh()
        gateway = GatewayId(uuid.uuid4().hex[:12])
        self._served = _served_model(config, created)
        if self._served.chat_template is not None:
            await self._served.chat_template.warm()
        rank, served = str(serve.get_replica_context().rank.rank), self._served
        self._metrics = GatewayMetrics(served.names[0], engine=rank, name=gateway, max_model_len=served.max_model_len)
        self._backend = LiveBackend(gateway, self._keeper.secrets, config, list(pools))
        self._metrics.line = self._backend.core.room
        shelf = self._backend.timelines.shelf
        if config.gateway.trace_endpoint:
            where = config.gateway.trace_endpoint, config.gateway.trace_share
            exporter = TraceExporter(*where, self._served.names[0], gateway)
            self._backend.timelines.send_to(exporter, self._metrics.traced)
        self._metrics.ask, self._metrics.refresh = self._ask_facts, self._publish
        self._running, times = RunningRequests(), partial(wished, shelf)
        self._peers = GatewayPeers(gateway, self._keeper.secrets, self._metrics.numbers, times, self._running)
        self._metrics.others = self._peers
        self._peers.start(link_host(), config.cluster.ports)
        self._keeper.start(self._peers.move)
        meter = TrafficMeter(gateway, config.slo.ttft_s, config.slo.tpot_s, config.time_scale)
        begun = {name: pool.replicas for name, pool in config.pools.items()}
        self._metered = metered = MeteredBackend(self._backend, meter, begun, waits=config.gateway.role_wait_s > 0)
        self._members: list[Member] = []
        self._pool = PoolViewFollower() if config.kvcache.replicas else None
        self._settings = partial(_api_settings, pool_salt=pool_salt, dashboard_url=dashboard_url)
        self._drain, self._members_read = GatewayDrain(), asyncio.Event()
        self._timelines = SharedTimelines(shelf, self._peers)
        self._pool_admin = self._admin(gateway, metered)
        self._open_app(gateway, pool_salt)
        if self._pool is not None:
            self._pool.start()
        endless = [self._follow_members(), self._watch_links(), TrafficReporter(metered, self._peers).run()]
        endless.append(self._batch_runner.run())
        if config.cluster.ray_metrics:
            endless.append(RayMetrics(partial(gateway_series, self._metrics, serve_place(), self._http is None)).run())
        self._tasks = [asyncio.create_task(task) for task in (*endless, self._background.watch())]
        if self._http is not None:
            await self._know_instances()
            self._tasks.append(asyncio.create_task(self._http.serve()))
            await self._http.opened()  # Serve stops an older gateway once this one is ready
        gc.freeze()  # the collector would walk the imported modules' objects while streams wait, for 50 ms and more

    def _open_app(self, gateway: GatewayId, pool_salt: bytes) -> None:
        """Build the application, its server, and the runner that sends lines of batches to it."""
        config, prefetcher = self._config, self._backend.prefetcher
        self._hints = None if prefetcher is None else LiveKvHints(prefetcher.links)
        self._pauses = pause_desk(config, self._hints, self._metrics)
        self._responses, self._background = stored_responses(config, gateway, self._metrics.clock)
        self._batches = batch_shelf(config)
        self._app = CurrentApp(self._make_app())
        self._http = make_http_server(config, self._app) if config.gateway.server == "uvicorn" else None
        salt_of, busy = partial(namespace_salt, pool_salt), self._backend.has_waiting
        self._batch_runner = batch_runner(config, self._batches, f"gateway-{gateway}", self._app, salt_of, busy)

    async def _know_instances(self) -> None:
        """Wait briefly for links to existing instances, before this gateway shares the requests of older ones.

        A gateway that starts with the system does not wait, since there is no instance yet.
        """
        with suppress(TimeoutError):
            await within(self._members_read.wait(), LINKS_S)
        for _ in range(round(LINKS_S / LEAST_MEMBERS_PERIOD_S)):
            if not self._members or self._backend.ready():
                return
            await asyncio.sleep(LEAST_MEMBERS_PERIOD_S)

    def _make_app(self) -> Any:
        """The ASGI application for the present configuration."""
        prefixes = LivePrefixFinder(self._backend.links, self._pool_admin, self._config.engine.block_tokens)
        kept = self._responses, self._running, self._peers, self._background, self._batches, self._hints
        shared = self._pool_admin, self._drain, *kept, prefixes, self._pauses
        app = create_app(self._metered, self._served, self._settings(self._config), self._metrics, *shared)
        app.include_router(cluster_router(self._cluster, self._experts))
        app.include_router(timeline_router(self._timelines))
        app.include_router(group_size_router(self._groups, partial(post_order, limit_s=ORDER_DEADLINE_S)))
        app.include_router(expert_router(self._post_order))
        return app

    async def reconfigure(self, live: dict[str, Any]) -> None:
        """Apply the keys that need no restart, see `upgrade_rules`. Called by Serve, also at the start.

        Effects: requests in progress keep the configuration they started with.
        """
        config = with_live(self._config, live)
        if config == self._config:
            return
        self._config = config
        self._metered.configure(config)
        self._app.now = self._make_app()
        if self._http is not None:
            self._http.configure(connection_limits(config), config.gateway.request_timeout_s)

    def __serve_build_asgi_app__(self) -> Any:
        """The ASGI app that Serve's own proxy reaches (`server = "serve"`)."""
        return WithoutRequestId(self._app)

    async def check_health(self) -> None:
        """Raises: RuntimeError if a permanent task has finished; Serve then replaces the replica."""
        for task in self._tasks:
            if task.done():
                raise RuntimeError(
                    f"{task.get_coro()} ended: {task.exception() if not task.cancelled() else 'cancelled'}"
                )

    async def drain(self, seconds: float) -> int:
        """Refuse new requests, wait up to `seconds` for those in progress, then fail the rest with an error.

        A second call may use a shorter time.

        Returns: number of failed requests.
        """
        self._drain.begin()
        await self._batch_runner.stop()
        idle, _ = await asyncio.gather(self._drain.idle(seconds), self._background.leave(seconds))
        if idle:
            return 0
        left = self._drain.busy
        self._backend.end_all("the server is shutting down; send it again")
        await self._drain.idle(ANNOUNCE_S)
        return left

    async def close_log(self) -> None:
        """Finish the decision log, if there is one, because the system stops."""
        if self._backend.recorder is not None:
            await asyncio.to_thread(self._backend.recorder.close)

    async def __del__(self) -> None:
        """Wait for the open streams, then shut down.

        Serve calls this when its own proxy has no more streams, and kills the process `graceful_shutdown_timeout_s` on.
        """
        if not hasattr(self, "_tasks"):
            return
        await self._batch_runner.stop()
        if self._http is not None:
            # While the system continues, requests on open connections are served; another gateway accepts new ones.
            # Uvicorn waits for streams as long as any may last.
            await self._http.leave(idle_s=0.0 if self._drain.begun else IDLE_S)
        await self._background.stop()
        if self._pauses is not None:
            self._pauses.close()
        for task in self._tasks:
            task.cancel()
        if self._pool is not None:
            await self._pool.stop()
        self._keeper.stop()
        await self._peers.stop()
        if (traces := self._backend.timelines.traces) is not None:
            await asyncio.to_thread(traces.close)
        self._backend.close()
        if self._served.chat_template is not None:
            self._served.chat_template.close()

    async def _follow_members(self) -> None:
        reader = MemberReader()
        while True:
            try:
                self._members = await reader.read(self._backend.listing_period_s(self._members))
            except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
                logger.warning("membership does not respond (%s); keeping the links", type(error).__name__)
                await asyncio.sleep(MEMBERS_PERIOD_S)
            else:
                self._backend.links.update([one for one in self._members if one.is_instance])
                self._backend.hosts = host_labels(self._members)
                self._members_read.set()
                self._backend.losses.retain({member.replica for member in self._members})
                await asyncio.sleep(LEAST_MEMBERS_PERIOD_S)

    async def _ask_facts(self) -> None:
        await asyncio.gather(self._backend.links.ask_facts(), *([self._pool.refresh(FACTS_S)] if self._pool else []))

    def _publish(self) -> None:
        current = self._current()
        for member in current:
            if member.is_instance:
                self._metrics.publish_instance(instance_stats(member, self._backend.hosts))
            elif (facts := expert_facts(member.facts)) is not None:
                self._metrics.publish_expert_rank(member.replica, member.pool, int(member.facts["rank"]), facts)
        self._metrics.system.publish(self._metered.targets, self._metered.tally)
        self._metrics.publish_groups(group_stats(self._experts()))
        self._metrics.hosts.publish(self._metered.hosts)
        self._metrics.retain_instances([member.replica for member in self._members])
        if self._pool is not None:
            self._metrics.publish_servers(memory_server_stats(self._pool.view))

    def _current(self) -> list[Member]:
        """Listed members, with their latest reports."""
        current = []
        for member in self._members:
            links = self._backend.links
            link = links.link(member.replica)
            reported = (link.status, link.facts) if link is not None else (None,)
            facts = current_facts(member.facts, *reported)
            lost = self._backend.losses.how(member.replica, member.incarnation)
            if links.hangs(member.replica):
                lost = "frozen"
            linked = link is not None or not member.is_instance
            current.append(replace(member, facts={**facts, "state": state_of(facts, lost, linked=linked)}))
        return current

    async def _watch_links(self) -> None:
        """Close silent links, and connect again to listed instances without one."""
        while True:
            pause_s = self._backend.links.check_silence()
            self._backend.links.update([one for one in self._members if one.is_instance])
            await asyncio.sleep(pause_s)

    async def _cluster(self) -> dict[str, Any]:
        """Response to `cloudmatrix status`: pools, replicas, NPUs, memory, queues."""
        await self._ask_facts()
        view, metered = None if self._pool is None else self._pool.view, self._metered
        return cluster_status(
            self._config,
            self._current(),
            metered.counts(),
            view,
            metered.targets,
            gateways=metered.gateways,
            hosts=metered.hosts,
            board_silent_s=metered.board_silent_s(asyncio.get_running_loop().time()),
        )

    def _experts(self) -> dict[str, Any]:
        """Response to `cloudmatrix experts`."""
        return expert_status({name: sum(pool.sides) for name, pool in self._config.pools.items()}, self._current())

    def _groups(self) -> list[OrderedGroup]:
        return ordered_groups(self._current())

    async def _post_order(self, group: str | None, order: OperatorOrder) -> OrderAnswer:
        return await post_order(
            choose_group({one.name: one.actor for one in self._groups()}, group), order, ORDER_DEADLINE_S
        )

    def _admin(self, gateway: GatewayId, backend: MeteredBackend) -> LivePoolAdmin | None:
        if self._pool is None:
            return None
        follower = self._pool
        node = NodeId(ray.get_runtime_context().get_node_id())
        accounted = accounted_kv(self._config)
        name, view, changes = f"gateway-{gateway}", lambda: follower.view, NamespaceChanges()
        self._backend.prefetcher = Prefetcher(MemoryLinks(hello_of(name, node, self._keeper.secrets), view))
        return LivePoolAdmin(name, node, self._keeper.secrets, view, changes, accounted, backend.losses.audited)


def _served_model(config: ServeConfig, created: int) -> ServedModel:
    folder, checkpoint = config.model.path, served_architecture(config)
    name, length = config.model.served_name, config.engine.max_model_len or checkpoint.max_position_embeddings
    served = ServedModel.from_folder(
        config.model.tokenizer_folder, names=(name,), max_model_len=length, created=created
    )
    if config.engine.executor != "simulated":  # the vocabulary of a simulated model is its tokenizer's
        served = replace(served, vocab_size=checkpoint.vocab_size)
    tools, calls = config.model.tools, config.model.most_calls
    return replace(
        served, root=model_root(folder), tools=tools, most_calls=calls, fingerprint=system_fingerprint(config)
    )


def _api_settings(config: ServeConfig, pool_salt: bytes, dashboard_url: str = "") -> ApiSettings:
    gateway = config.gateway
    return ApiSettings(
        version=VERSION,
        api_key_hashes=unsealed(gateway.api_keys),
        admin_key_hashes=unsealed(gateway.admin_keys),
        namespaces=tuple(NamespaceKeys(one.name, unsealed(one.api_keys), one.weight) for one in config.namespaces),
        pool_salt=pool_salt,
        max_body_bytes=gateway.max_body_bytes,
        max_n=gateway.max_n,
        max_sequences=gateway.max_request_sequences,
        max_logprob_entries=gateway.max_logprob_entries,
        request_timeout_s=gateway.request_timeout_s,
        allowed_origins=gateway.allowed_origins,
        hosts=_hosts(config),
        placeholder_tokens=config.engine.executor == "simulated",
        pools_page=f"{dashboard_url}/pools" if dashboard_url else "",
        root_path=gateway.root_path,
        keep=response_limits(gateway),
        background=work_limits(gateway),
        media=gateway.media,
        hints=hint_limits(config),
    )


def _hosts(config: ServeConfig) -> AllowedHosts | None:
    """Accepted host names of requests, or None: a page that poses as this server has no API key."""
    gateway = config.gateway
    if ANY in gateway.allowed_hosts or (config.api_keys_required and not gateway.allowed_hosts):
        return None
    names = (in_header(gateway.host), *gateway.allowed_hosts)
    return AllowedHosts(names, any_address=not is_loopback(gateway.host))
