"""All settings of the service, by keyword or from `ACCORDION_...` variables; it alone reads the
environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from accordion_service.domain.access import Role
from accordion_service.errors import SettingsError
from accordion_service.settings.secret_files import read_secret
from accordion_service.settings.setting_values import (
    DatabaseUrl,
    Folder,
    IndexUrls,
    LogLevel,
    Networks,
    NodeFailures,
    RoleByGroup,
    Words,
)
from accordion_workers.spec.types import MAX_PRIORITY

PREFIX = "ACCORDION_"
"""Start of the variables of settings."""
MIN_KEY_LENGTH = 32
"""Minimum length of the key that encrypts secrets."""
MIN_TOKEN_LENGTH = 16
"""Minimum length of a token; a shorter one could be guessed over the network."""
_YEAR_S = 365 * 86_400.0
"""Longest duration that a setting may have, in seconds."""
_SECRET = frozenset({"CLIENT_SECRET", "DATABASE_URL", "INDEX_URL", "SECRETS_KEY", "TOKEN"})
"""Suffixes of names whose values are never shown: they contain passwords."""


class Settings(BaseSettings):
    """Settings of the service. `load_settings` creates them and reports an error in one line.

    Raises (every method that reads a secret): SettingsError, if its file cannot be read, or it is
    too short or not of ASCII characters.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", populate_by_name=True
    )

    home: Folder = Path("~/.accordion")
    """Directory of the database, checkpoints, logs and lock files."""
    database_url: DatabaseUrl = ""
    """SQLAlchemy URL; empty is SQLite in the home directory."""
    storage: str = ""
    """Directory of checkpoints and end files, reachable from every worker; empty is `storage` in
    the home directory.
    """
    host: str = "127.0.0.1"
    """Address at which the api listens; other than loopback requires a token."""
    port: int = Field(default=8080, ge=0, le=65535)
    """Port of the api; 0 for any free one."""
    url: str = ""
    """URL of the service for clients; empty is that of the profile, or of this home directory."""
    profile: str = ""
    """Profile of clients in `~/.config/accordion/config.toml`, which has a URL and the file of a
    token; empty is its `default`.
    """
    completion_timeout_s: float = Field(default=1.0, gt=0)
    """Seconds for which the shell waits for the service when it completes a word."""
    request_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds without a response after which clients end an attempt."""
    request_total_s: float = Field(default=20.0, gt=0)
    """Seconds in which clients send a failed request again, if it cannot take effect twice."""
    admin_token: SecretStr | None = None
    """Token that may do everything, of at least 16 characters."""
    admin_token_file: Path | None = None
    """File with the token that may do everything."""
    metrics_token: SecretStr | None = None
    """Read-only token for `/metrics` alone, so that a Prometheus server needs no admin token."""
    metrics_token_file: Path | None = None
    """File with the token for `/metrics`."""
    user_token: SecretStr | None = Field(default=None, validation_alias="ACCORDION_TOKEN")
    """Token of the user of the command line and the Python client."""
    user_token_file: Path | None = Field(default=None, validation_alias="ACCORDION_TOKEN_FILE")
    """File with the token of the command line and the Python client."""
    secrets_key_text: SecretStr | None = Field(
        default=None, validation_alias="ACCORDION_SECRETS_KEY"
    )
    """Random text of at least 32 characters that encrypts the secrets of users, the same for all
    processes. By default the api creates it in the file `secrets.key` of the home directory.
    """
    secrets_key_file: Path | None = None
    """File with the text that encrypts secrets."""
    login_days: float = Field(default=30.0, gt=0, le=3650)
    """Days after which users of the OpenID Connect provider, and command lines that logged in with
    a browser, must log in again.
    """
    oidc_issuer: str = ""
    """URL of the OpenID Connect provider through which users may log in, as it names itself; http
    on loopback only. Empty: none. The provider redirects to `/login/oidc/callback` below
    ACCORDION_URL, or below the address in the browser if that is not set.
    """
    oidc_client_id: str = ""
    """ID under which the provider knows the service."""
    oidc_client_secret: SecretStr | None = None
    """Secret with which the service logs in at the provider."""
    oidc_client_secret_file: Path | None = None
    """File with the secret for the provider."""
    oidc_name: str = Field(default="", max_length=64)
    """Name of the provider on the login page; empty is the host of the issuer."""
    oidc_scopes: str = "openid profile email"
    """Scopes that are requested, separated by spaces. Some providers return groups only with a
    scope of their own.
    """
    oidc_user_claim: str = Field(default="preferred_username", min_length=1)
    """Claim with the name of a user who logs in for the first time."""
    oidc_groups_claim: str = Field(default="groups", min_length=1)
    """Claim with the groups of a user: a text or a list of texts."""
    oidc_roles: RoleByGroup = Field(default_factory=dict)
    """Role of each group as a JSON object, such as {"ml-team": "editor"}. Who is in several groups
    gets the highest: viewer, editor, operator, admin.
    """
    oidc_default_role: Role | None = None
    """Role of users in no group of ACCORDION_OIDC_ROLES; not set: they cannot log in."""
    requests_per_second: float = Field(default=50.0, gt=0)
    """Requests per second that a token, or a browser session, may make in the long run, in each api
    process; the admin token of the settings has no limit.
    """
    request_burst: int = Field(default=200, ge=1)
    """Requests that a token, or a browser session, may make at once."""
    max_priority: int = Field(default=MAX_PRIORITY, ge=0, le=MAX_PRIORITY)
    """Highest priority that a user without the scope `write:all` may give a job. A higher priority
    takes workers from jobs of other users.
    """
    webhook_networks: Networks = ()
    """Networks in which receivers of webhooks and servers of MLflow may be, also over http; others
    need a public address and https. Every user may let the service send requests to all of their
    addresses, so name single receivers, such as 10.1.2.3/32. Api and scheduler need the same.
    """
    logger_folder: Folder | None = None
    """Directory of the files of loggers, one below it for each job; only the service may be able to
    write there. By default `loggers` in the home directory.
    """
    wandb_url: str = Field(default="https://api.wandb.ai", pattern=r"^https?://")
    """URL of the W&B server to which the loggers of all jobs send."""
    pip_enabled: bool = True
    """Whether jobs may name packages in `pip`, which their workers install. Set the same value for
    api and scheduler. This is no security boundary: users run their own code anyway.
    """
    pip_index_url: IndexUrls | None = None
    """URL of the index of packages in `pip`; it may have a user name and a password. By default pip
    uses its configuration on the head node, or PyPI.
    """
    pip_extra_index_url: IndexUrls | None = None
    """URLs of further indexes of `pip`, separated by spaces. A package that two indexes have comes
    from either, so use only indexes that you trust for all names.
    """
    no_auth: bool = False
    """Require no token on loopback: any user of this machine can then run code as the service's
    user.
    """
    allowed_hosts: Words = ()
    """Accepted `Host` names besides those of loopback and the host of ACCORDION_URL. If neither is
    set, any name is accepted when a token is set; with the home directory's token and a loopback
    address, only loopback names are.
    """
    ray_cpus: int | None = Field(default=None, ge=1, le=4096)
    """CPUs that `accordion up` offers to jobs, of which a worker takes one unless its job file says
    otherwise; without it those of the machine, and at least 4.
    """
    ray_dashboard: bool = False
    """`accordion up` starts Ray's dashboard, and with it the state API (`ray list actors`); needs
    `ray[default]`.
    """
    ray_address: str = Field(
        default="auto", validation_alias=AliasChoices("ACCORDION_RAY_ADDRESS", "RAY_ADDRESS")
    )
    """Address of the Ray cluster; `auto` is the one that runs on this machine."""
    ray_token: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("ACCORDION_RAY_TOKEN", "RAY_AUTH_TOKEN")
    )
    """Token of the Ray cluster."""
    ray_token_file: Path | None = Field(
        default=None,
        validation_alias=AliasChoices("ACCORDION_RAY_TOKEN_FILE", "RAY_AUTH_TOKEN_PATH"),
    )
    """File with the token of the Ray cluster."""
    pass_to_workers: Words = ()
    """Names of variables that `accordion up` passes on to the workers, such as a storage's
    AWS_ACCESS_KEY_ID.
    """
    data_cache: str = Field(default="", pattern=r"^(/.*)?$")
    """Directory on each node in which workers keep the files of `data` in a spec that they fetch.
    Empty: one in their temporary directory.
    """
    data_cache_bytes: int = Field(default=107_374_182_400, ge=0)
    """Bytes of data that a node keeps in ACCORDION_DATA_CACHE; what was used least recently is
    removed first. 0: limited only by free disk space.
    """
    max_body_bytes: int = Field(default=1_048_576, ge=1024)
    """Largest request body."""
    max_connections: int = Field(default=1000, ge=1)
    """Maximum client connections of one api process; fewer if its limit of open files is lower. A
    token may use a tenth of them at once, and a user a fifth.
    """
    max_code_bytes: int = Field(default=67_108_864, ge=1024)
    """Largest upload of code."""
    code_retention_s: float = Field(default=86_400.0, ge=60)
    """How long an upload that no job names is kept after its last request; an upload itself takes a
    while.
    """
    metrics_retention_s: float = Field(default=300.0, ge=0)
    """How long an ended job stays in `/metrics`."""
    job_retention_s: float = Field(default=0.0, ge=0)
    """How long an ended job, archived or not, is kept, in seconds since its end; then it is deleted
    with its history and checkpoints. 0 keeps all.
    """
    checkpoint_retention_s: float = Field(default=0.0, ge=0)
    """How long all checkpoints of an ended job are kept, in seconds since its end; then
    ACCORDION_ENDED_CHECKPOINTS of them are. 0 keeps all.
    """
    ended_checkpoints: Literal["newest_and_best", "none"] = "newest_and_best"
    """Which checkpoints of an ended job remain after ACCORDION_CHECKPOINT_RETENTION_S. With `none`,
    a retry trains from the beginning, and the model can no longer be downloaded or trained further.
    """
    max_ended_jobs: int = Field(default=0, ge=0)
    """How many ended jobs are kept; those that ended first are deleted. Archived jobs neither
    count nor are deleted by this limit. 0 keeps all.
    """
    max_log_bytes: int = Field(default=67_108_864, ge=0)
    """Bytes of output that are kept of each job, counted as JSON; the oldest are removed. 0 keeps
    all.
    """
    max_events: int = Field(default=100_000, ge=0)
    """Events that are kept of each job; the oldest are removed. 0 keeps all."""
    history_retention_s: float = Field(default=0.0, ge=0)
    """How long events and output of an ended job are kept, in seconds since its end. 0 keeps them
    as long as the job.
    """
    audit_retention_s: float = Field(default=0.0, ge=0)
    """How long an entry of the audit log is kept, in seconds. 0 keeps all."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """How long a start may take while no worker process is placed before it is retried. Loading has
    its own limit in the job's spec.
    """
    cancel_grace_s: float = Field(default=30.0, gt=0)
    """Seconds from a cancel, or from the end of `accordion up`, until the workers are killed."""
    preempt_for_priority: bool = False
    """Whether a job is paused while a more important one could not start otherwise. Jobs above
    their minimum number of workers give some back in any case.
    """
    priority_per_hour: float = Field(default=0.0, ge=0, le=100)
    """Points by which the priority of a job rises with each hour since it was queued, so that it
    starts even if more important jobs keep arriving. It changes the order of the queue: a job gives
    up workers only to one that is more important and ahead of it in this order.
    """
    autoscaler: Literal["auto", "on", "off"] = "auto"
    """Whether the nodes that waiting jobs need are requested from Ray's autoscaler: with `auto` if
    the cluster has one, as the node types of its nodes show; with `on` in any case. A cluster has
    one such request, so use `off` where another program makes it, such as a second installation.
    """
    autoscaler_max_workers: int = Field(default=256, ge=1)
    """Maximum number of workers of waiting jobs for which nodes are requested at a time. Nodes for
    later jobs are requested once earlier jobs have started; none are requested for a job whose
    minimum is larger.
    """
    node_failures: NodeFailures = Field(default=3, ge=0)
    """Failures of workers from which their node is avoided; at least 2, or 0 for never. Those of
    one job are never enough.
    """
    node_failure_window_s: float = Field(default=1800.0, gt=0, le=_YEAR_S)
    """How long a failure counts against its node, in seconds."""
    node_avoid_s: float = Field(default=1800.0, gt=0, le=_YEAR_S)
    """How long a node is avoided the first time, in seconds; twice as long each further time."""
    node_avoid_max_s: float = Field(default=86_400.0, gt=0, le=_YEAR_S)
    """Longest time for which a node is avoided, in seconds. After that long without
    an avoidance, the count restarts.
    """
    max_lost_attempts: int = Field(default=5, ge=0)
    """How many attempts of a job may vanish with their machines before the job fails as LOST."""
    patience_s: float = Field(default=5.0, ge=0)
    """How long a supervisor may be missing, for example while Ray restarts it, until its attempt
    counts as lost.
    """
    guest_lost_s: float = Field(default=60.0, gt=0)
    """Seconds without a heartbeat until a guest run is LOST, and without a step until that is
    shown. It gives one every few seconds; Ray Train takes 12 s to replace a worker, and about 70 s
    to replace a node.
    """
    guest_closed_s: float = Field(default=86_400.0, gt=0)
    """Seconds without a heartbeat until a LOST guest run counts as FAILED; until then it may
    come back.
    """
    lease_s: float = Field(default=3.0, gt=0)
    """Lifetime of the scheduler's lease, in seconds: how long a successor waits for one that died.
    """
    drain_interval_s: float = Field(default=0.25, gt=0)
    """Interval between two turns over the running jobs."""
    survey_interval_s: float = Field(default=1.0, gt=0)
    """Interval between two surveys of nodes and supervisors, and between repeated orders."""
    heartbeat_stale_s: float = Field(default=10.0, gt=0)
    """Age of the scheduler's heartbeat from which `/readyz` reports not ready."""
    sse_keepalive_s: float = Field(default=15.0, gt=0)
    """Interval between two comments that keep a silent stream open."""
    log_level: LogLevel = "INFO"
    """Least important messages in the logs of api and scheduler: DEBUG, INFO, WARNING or ERROR."""

    @property
    def database(self) -> str:
        """The database URL in force."""
        return self.database_url or f"sqlite:///{self.home / 'accordion.db'}"

    @property
    def home_token(self) -> Path:
        """File of the token that `accordion up` creates if none is set."""
        return self.home / "token"

    @property
    def home_secrets_key(self) -> Path:
        """File of the key that the api creates if none is set."""
        return self.home / "secrets.key"

    @property
    def code(self) -> Path:
        """Directory of uploaded code, the same for api and scheduler."""
        return self.home / "code"

    def loggers_of(self, job_id: str) -> Path:
        """Directory of the files of one job's loggers."""
        return (self.logger_folder or self.home / "loggers") / job_id

    def storage_of(self, job_id: str) -> str:
        """Directory of one job's checkpoints and end file."""
        # Workers have working directories of their own.
        root = Path(self.storage or self.home / "storage").absolute()
        return f"{str(root).rstrip('/')}/{job_id}"

    def token(self) -> str | None:
        """The admin token, from the variable or the file; None where neither is set."""
        return self._read_secret("admin_token", shortest=MIN_TOKEN_LENGTH)

    def client_token(self) -> str | None:
        """The token with which the command line calls the service; None if none is set."""
        return self._read_secret("user_token", name="TOKEN", shortest=MIN_TOKEN_LENGTH)

    def scrape_token(self) -> str | None:
        """The token that reads `/metrics` and nothing else; None if none is set."""
        return self._read_secret("metrics_token", shortest=MIN_TOKEN_LENGTH)

    def secrets_key(self) -> str | None:
        """The key that encrypts secrets; None if none is set and the home directory has none."""
        file = self.secrets_key_file
        if self.secrets_key_text is None and file is None and self.home_secrets_key.exists():
            file = self.home_secrets_key
        name = "ACCORDION_SECRETS_KEY"
        return read_secret(self.secrets_key_text, file, name=name, shortest=MIN_KEY_LENGTH)

    def oidc_secret(self) -> str | None:
        """The secret with which the service logs in at the OpenID Connect provider; None if none
        is set.
        """
        return self._read_secret("oidc_client_secret", shortest=1)

    def ray_auth_token(self) -> str | None:
        """The Ray cluster's token; None where none is set."""
        return self._read_secret("ray_token", shortest=1)

    def _read_secret(self, field: str, *, name: str = "", shortest: int) -> str | None:
        """Read the secret of a field or of its file; `name` is its variable if that differs."""
        value, file = getattr(self, field), getattr(self, f"{field}_file")
        variable = f"{PREFIX}{name or field.upper()}"
        return read_secret(value, file, name=variable, shortest=shortest)


def list_variables() -> list[str]:
    """Return the names of the environment's `ACCORDION_...` variables."""
    return [name for name in os.environ if name.upper().startswith(PREFIX)]


def load_settings(**given: Any) -> Settings:
    """Settings from the environment; a keyword wins over its variable.

    Raises:
        SettingsError: a value is wrong; one sentence with its name.
    """
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError(
            "; ".join(_describe_error(item) for item in error.errors(include_url=False))
        ) from None


def _describe_error(item: Any) -> str:
    where = "_".join(str(part) for part in item["loc"])
    name = where if where.isupper() else f"{PREFIX}{where.upper()}"
    message = item["msg"].removeprefix("Value error, ")
    return (
        f"{name}: {message}"
        if name.endswith(tuple(_SECRET))
        else f"{name} is {item['input']!r}: {message}"
    )
