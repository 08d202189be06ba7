"""The commands by name, each with its module in this folder and its function there.

A command is imported when it runs, or when a help or the shell lists it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandGroup:
    """Commands whose names begin with the same word."""

    help: str
    places: Mapping[str, str]
    """Module and function of each command, by its second word."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """What to type in place of words that are no command, by the word."""


COMMANDS: Mapping[str, str | CommandGroup] = {
    "up": "processes:up",
    "down": "processes:down",
    "demo": "processes:demo",
    "env": "processes:env",
    "submit": "jobs:submit",
    "clone": "jobs:clone",
    "check": "check:check",
    "schema": "check:schema",
    "examples": "examples:examples",
    "plan": "plans:plan",
    "simulate": "simulate:simulate",
    "list": "listing:list_jobs",
    "show": "history:show",
    "why": "history:why",
    "watch": "watch:watch",
    "logs": "watch:logs",
    "override": "overrides:override",
    "hand-back": "overrides:hand_back",
    "resize": "steering:resize",
    "pause": "steering:pause",
    "resume": "steering:resume",
    "cancel": "steering:cancel",
    "retry": "steering:retry",
    "change": "steering:change",
    "download": "download:download",
    "export": "export:export",
    "report": "report:report",
    "compare": "compare:compare",
    "archive": "steering:archive",
    "unarchive": "steering:unarchive",
    "delete": "deletion:delete",
    "queue": "queue:queue",
    "nodes": "nodes:list_nodes",
    "mcp": "mcp:mcp",
    "doctor": "doctor:doctor",
    "settings": "settings:settings",
    "login": "login:login",
    "logout": "login:logout",
    "whoami": "accounts:whoami",
    "audit": "audit:audit",
    "backup": "backups:backup",
    "restore": "backups:restore",
    "move-database": "backups:move_database",
    "api": "processes:api",
    "scheduler": "processes:scheduler",
    "user": CommandGroup(
        help="Add, change and list users.",
        places={
            "add": "accounts:add_user",
            "change": "accounts:change_user",
            "list": "accounts:list_users",
        },
        hints={
            "disable": "accordion user change NAME --disable",
            "enable": "accordion user change NAME --enable",
            "remove": "accordion user change NAME --disable; users are not removed",
            "delete": "accordion user change NAME --disable; users are not removed",
        },
    ),
    "token": CommandGroup(
        help="Create, list and revoke tokens.",
        places={
            "new": "accounts:new_token",
            "list": "accounts:list_tokens",
            "revoke": "accounts:revoke_token",
        },
        hints={
            "add": "accordion token new --label TEXT",
            "create": "accordion token new --label TEXT",
            "remove": "accordion token revoke ID",
            "delete": "accordion token revoke ID",
        },
    ),
    "quota": CommandGroup(
        help="Set, list and remove quotas.",
        places={
            "set": "quotas:set_quota",
            "list": "quotas:list_quotas",
            "remove": "quotas:remove_quota",
        },
    ),
    "node": CommandGroup(
        help="Keep workers from a node, and restore it.",
        places={"cordon": "nodes:cordon", "restore": "nodes:restore"},
    ),
    "secret": CommandGroup(
        help="Set, list and remove values that jobs get in environment variables.",
        places={
            "set": "secrets:set_secret",
            "list": "secrets:list_secrets",
            "remove": "secrets:remove_secret",
        },
    ),
    "webhook": CommandGroup(
        help="Notify other programs when a job changes its status.",
        places={
            "add": "webhooks:add_webhook",
            "list": "webhooks:list_webhooks",
            "rotate-secret": "webhooks:rotate_secret",
            "remove": "webhooks:remove_webhook",
            "test": "webhooks:send_test",
            "deliveries": "webhooks:list_deliveries",
            "send-again": "webhooks:send_again",
        },
    ),
}
"""All commands, in the order of the help."""
