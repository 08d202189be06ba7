"""The api process: `create_app` builds the application, `serve_api` runs it until a signal."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace
from functools import cache, partial
from types import FrameType

import structlog
import uvicorn
from fastapi import APIRouter, FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.routing import BaseRoute

from accordion_service.access.authentication import Authenticator
from accordion_service.access.guards import access_of
from accordion_service.access.oidc_config import read_oidc_config
from accordion_service.access.oidc_provider import OidcProvider
from accordion_service.access.rate_limits import RateLimits
from accordion_service.access.sessions import cookie_name
from accordion_service.api import (
    accounts,
    batches,
    catalog,
    code,
    health,
    history,
    history_columns,
    job_counts,
    jobs,
    login,
    login_codes,
    login_links,
    model_downloads,
    nodes,
    overrides,
    plans,
    quotas,
    secrets,
    steering,
    streams,
    webhooks,
)
from accordion_service.api.app_state import AppState, Clock
from accordion_service.api.dashboard import provider_login, report_route
from accordion_service.api.dashboard.router import router as pages
from accordion_service.api.feeds import FeedHub
from accordion_service.api.http_connections import (
    BoundedConnection,
    ConnectionLimits,
    raise_file_limit,
)
from accordion_service.api.middleware import GuardMiddleware
from accordion_service.api.open_requests import OpenRequests
from accordion_service.api.problems import install_problems
from accordion_service.api.request_times import RequestTimes, TimedRequests
from accordion_service.errors import SettingsError
from accordion_service.process.garbage_collection import collect_less_often
from accordion_service.process.logs import configure_logs
from accordion_service.settings.home import Home
from accordion_service.settings.setting_list import log_unknown_variables
from accordion_service.settings.settings import Settings
from accordion_service.store.engine.database import Database, hide_password
from accordion_service.store.migrations import upgrade
from accordion_service.store.reads.cluster import ClusterReads
from accordion_service.store.reads.history import HistoryReads
from accordion_service.store.reads.jobs import JobReads
from accordion_service.store.reads.overrides import OverrideReads
from accordion_service.store.reads.queue import QueueReads
from accordion_workers.common.described_models import build_models

_GRACE_S = 10
"""Seconds for open requests to finish after the stop signal; streams end by themselves."""

_log = structlog.get_logger()
_ENCODED_BYTES = 1000
"""Shorter responses fit into a packet or two, and gain nothing from gzip."""
_ENCODING_LEVEL = 4
"""Level of gzip: half the time of 9, Starlette's default, and the charts' code 4 % larger."""


def create_app(settings: Settings, clock: Clock = time.time) -> FastAPI:
    """Create the application on a migrated database.

    Raises:
        SettingsError: the service would be reachable from other machines without a token, or
            settings do not fit together.
        StartError: the home directory or the database cannot be used.
    """
    build_models()
    access = access_of(settings)
    state = _build_state(settings, clock)
    access = replace(access, cookie=state.cookie)
    app: FastAPI = FastAPIOffline(
        title="Accordion",
        version="1",
        description="Elastic training with gradient compression that adapts while the job runs.",
        static_url="/static/docs",
        redirect_slashes=False,
        routes=_routes(),
    )
    app.state.accordion = state
    install_problems(app)
    # The layer added last is the outermost.
    app.add_middleware(
        GZipMiddleware,
        minimum_size=_ENCODED_BYTES,
        compresslevel=_ENCODING_LEVEL,
        exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, model_downloads.MEDIA_TYPE),
    )
    app.add_middleware(TimedRequests, times=state.request_times)
    app.add_middleware(
        GuardMiddleware,
        access=access,
        authenticator=Authenticator(access, state.database, clock),
        rate_limits=RateLimits(
            settings.requests_per_second, settings.request_burst, time.monotonic
        ),
        open_requests=OpenRequests(state.connections),
        max_body_bytes=settings.max_body_bytes,
    )
    return app


@cache
def _routes() -> list[BaseRoute]:
    """All routes of the api and the pages; FastAPI analyses each at its first request, whichever
    application it comes to.
    """
    whole = APIRouter(generate_unique_id_function=lambda route: route.name, redirect_slashes=False)
    accounts_and_logins = (accounts, quotas, secrets, login_links, login_codes)
    jobs_and_history = (jobs, batches, steering, history, history_columns, overrides, streams)
    others = (plans, report_route, catalog, code, job_counts, model_downloads, nodes, webhooks)
    for module in (*jobs_and_history, *others, *accounts_and_logins):
        whole.include_router(module.router, prefix="/api/v1")
    login_pages = (login.router, login_codes.exchange_router, provider_login.router)
    for router in (health.router, *login_pages, pages):
        whole.include_router(router)
    return whole.routes


def _build_state(settings: Settings, clock: Clock) -> AppState:
    oidc = read_oidc_config(settings)
    Home(settings.home).check()
    upgrade(settings.database)
    database, draining = Database(settings.database), threading.Event()
    job_reads, cluster = JobReads(database), ClusterReads(database)
    return AppState(
        settings=settings,
        database=database,
        jobs=job_reads,
        queue=QueueReads(database),
        history=HistoryReads(database),
        overrides=OverrideReads(database),
        cluster=cluster,
        clock=clock,
        request_times=RequestTimes(),
        feeds=FeedHub(job_reads, draining),
        draining=draining,
        cookie=cookie_name(cluster.installation()),
        oidc=None if oidc is None else OidcProvider(oidc, clock),
    )


def serve_api(settings: Settings) -> None:
    """Run the api until SIGTERM or SIGINT; while it stops, streams end and writes are refused.

    Raises:
        SettingsError: the port is taken, or a setting is wrong.
        StartError: the home directory or the database cannot be used.
    """
    listener = _open_socket(settings.host, settings.port)
    configure_logs(settings.log_level, "api")
    log_unknown_variables()
    app = create_app(settings)
    limits = ConnectionLimits(connections=raise_file_limit(settings.max_connections))
    config = uvicorn.Config(
        app,
        http=partial(BoundedConnection, limits=limits),  # type: ignore[arg-type]  # called as a class is
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
        server_header=False,
    )
    state: AppState = app.state.accordion
    state.connections.limit = limits.connections
    watch = threading.Thread(target=state.database.watch_file, args=(state.draining,), daemon=True)
    watch.start()
    collect_less_often()
    try:
        _Server(config, state).run(sockets=[listener])
    finally:
        state.draining.set()
        state.database.close()


class _Server(uvicorn.Server):
    """Notifies the application of the signal first, to end streams that keep the server running."""

    def __init__(self, config: uvicorn.Config, state: AppState) -> None:
        super().__init__(config)
        self._state = state
        state.connections.members = self.server_state.connections

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._state.draining.set()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and log where."""
        await super().startup(sockets)
        for one in sockets or []:
            host, port = one.getsockname()[:2]
            named = f"[{host}]" if ":" in host else host
            database = hide_password(self._state.settings.database)
            _log.info("api began", address=f"http://{named}:{port}", database=database)


def _open_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named; without it each response waits 40 ms
    # for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"port {port} on {host} cannot be used ({error.strerror}); "
            "end what uses it, or choose another with ACCORDION_PORT"
        ) from error
    listener.set_inheritable(True)
    return listener
