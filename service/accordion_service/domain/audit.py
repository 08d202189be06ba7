"""What the audit log records: the table of its actions."""

from __future__ import annotations

from enum import StrEnum


class AuditAction(StrEnum):
    """What was done, in an entry of the audit log.

    - `job.submitted`: submitted or cloned. `job.changed`: name, labels or priority.
    - `job.resized`, `job.paused`, `job.resumed`, `job.cancelled`, `job.retried`: requested; the
      scheduler acts later.
    - `job.archived`, `job.unarchived`: an ended job was hidden from lists, or is shown again.
    - `job.deleted`: by a user, or by retention. `job.checkpoints_removed`: by retention.
    - `override.added`, `override.cancelled`: of a job, which is the subject.
    - `plan.added`, `plan.cancelled`: a plan that is measured on the cluster.
    - `code.uploaded`: a zip file with code of jobs.
    - `node.cordoned`, `node.restored`: a node takes no new workers, or takes them again.
    - `quota.set`, `quota.removed`: of a user or a label.
    - `secret.set`, `secret.removed`: of the user who did it.
    - `webhook.added`, `webhook.removed`, `webhook.secret_rotated`, `webhook.tested`,
      `webhook.sent_again`: of the user who did it.
    - `webhook.disabled`: by the service, because its receiver wants no more messages.
    - `user.added`, `user.changed`: by an admin, or by a login through the provider.
    - `user.logged_in`: through the provider.
    - `token.added`, `token.revoked`: of any user.
    - `login_code.added`: a command line logs in with a browser.
    - `login_link.added`: a link that logs a browser in once.
    """

    JOB_SUBMITTED = "job.submitted"
    JOB_CHANGED = "job.changed"
    JOB_RESIZED = "job.resized"
    JOB_PAUSED = "job.paused"
    JOB_RESUMED = "job.resumed"
    JOB_CANCELLED = "job.cancelled"
    JOB_RETRIED = "job.retried"
    JOB_ARCHIVED = "job.archived"
    JOB_UNARCHIVED = "job.unarchived"
    JOB_DELETED = "job.deleted"
    JOB_CHECKPOINTS_REMOVED = "job.checkpoints_removed"
    OVERRIDE_ADDED = "override.added"
    OVERRIDE_CANCELLED = "override.cancelled"
    PLAN_ADDED = "plan.added"
    PLAN_CANCELLED = "plan.cancelled"
    CODE_UPLOADED = "code.uploaded"
    NODE_CORDONED = "node.cordoned"
    NODE_RESTORED = "node.restored"
    QUOTA_SET = "quota.set"
    QUOTA_REMOVED = "quota.removed"
    SECRET_SET = "secret.set"  # noqa: S105 - a name
    SECRET_REMOVED = "secret.removed"  # noqa: S105 - a name
    WEBHOOK_ADDED = "webhook.added"
    WEBHOOK_REMOVED = "webhook.removed"
    WEBHOOK_SECRET_ROTATED = "webhook.secret_rotated"  # noqa: S105 - a name
    WEBHOOK_TESTED = "webhook.tested"
    WEBHOOK_SENT_AGAIN = "webhook.sent_again"
    WEBHOOK_DISABLED = "webhook.disabled"
    USER_ADDED = "user.added"
    USER_CHANGED = "user.changed"
    USER_LOGGED_IN = "user.logged_in"
    TOKEN_ADDED = "token.added"  # noqa: S105 - a name
    TOKEN_REVOKED = "token.revoked"  # noqa: S105 - a name
    LOGIN_CODE_ADDED = "login_code.added"
    LOGIN_LINK_ADDED = "login_link.added"
