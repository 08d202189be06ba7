"""The commands by name, each with its module below `service.commands` and its function there.

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
    "demo": "processes:demo",
    "env": "processes:env",
    "submit": "jobs:submit",
    "clone": "jobs:clone",
    "plan": "plan:plan",
    "list": "listing:list_jobs",
    "show": "history:show",
    "why": "history:why",
    "watch": "watch:watch",
    "logs": "watch:logs",
    "override": "job_control:override",
    "hand-back": "job_control:hand_back",
    "resize": "job_control:resize",
    "pause": "job_states:pause",
    "resume": "job_states:resume",
    "cancel": "job_states:cancel",
    "retry": "job_states:retry",
    "change": "job_control:change",
    "download": "download:download",
    "report": "report:report",
    "compare": "compare:compare",
    "archive": "job_states:archive",
    "unarchive": "job_states:unarchive",
    "delete": "deletion:delete",
    "queue": "queue_commands:queue",
    "nodes": "node_commands:list_nodes",
    "doctor": "doctor:doctor",
    "settings": "setting_commands:settings",
    "login": "logins:login",
    "logout": "logins:logout",
    "whoami": "account_commands:whoami",
    "audit": "audit_commands:audit",
    "backup": "backups:backup",
    "restore": "backups:restore",
    "move-database": "backups:move_database",
    "api": "processes:api",
    "scheduler": "processes:scheduler",
    "user": CommandGroup(
        help="Add, change and list users.",
        places={
            "add": "account_commands:add_user",
            "change": "account_commands:change_user",
            "list": "account_commands:list_users",
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
            "new": "account_commands:new_token",
            "list": "account_commands:list_tokens",
            "revoke": "account_commands:revoke_token",
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
            "set": "queue_commands:set_quota",
            "list": "queue_commands:list_quotas",
            "remove": "queue_commands:remove_quota",
        },
    ),
    "node": CommandGroup(
        help="Keep workers from a node, and restore it.",
        places={"cordon": "node_commands:cordon", "restore": "node_commands:restore"},
    ),
    "secret": CommandGroup(
        help="Set, list and remove values that jobs get in environment variables.",
        places={
            "set": "secret_commands:set_secret",
            "list": "secret_commands:list_secrets",
            "remove": "secret_commands:remove_secret",
        },
    ),
    "webhook": CommandGroup(
        help="Notify other programs when a job changes its status.",
        places={
            "add": "webhook_commands:add_webhook",
            "list": "webhook_commands:list_webhooks",
            "rotate-secret": "webhook_commands:rotate_secret",
            "remove": "webhook_commands:remove_webhook",
            "test": "webhook_commands:send_test",
            "deliveries": "webhook_commands:list_deliveries",
            "send-again": "webhook_commands:send_again",
        },
    ),
}
"""All commands, in the order of the help."""
