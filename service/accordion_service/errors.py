"""Every error of the service, in one tree. Those under `ApiError` carry their HTTP status and a
stable code.

ServiceError
├── ApiError              becomes a problem+json answer
│   ├── NotFound          404
│   ├── Conflict          409
│   ├── PreconditionFailed 412
│   ├── TooLarge          413, UnsupportedMediaType 415
│   ├── Invalid           422
│   ├── Unauthorized      401, Forbidden 403
│   ├── TooManyRequests   429
│   └── Unavailable       503
│       ├── DatabaseReplaced
│       └── UnreadableSecret
├── SettingsError         a setting is wrong; the process does not start
├── StartError            a process cannot start, or its database cannot be used
└── RuntimeUnavailable    the Ray cluster does not answer
"""

from __future__ import annotations

from typing import ClassVar


class ServiceError(Exception):
    """Root of the service's errors."""


class ApiError(ServiceError):
    """An HTTP error: its message has the value, the limit and the fix."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"


class NotFound(ApiError):
    """The resource does not exist, or belongs to another user."""

    status = 404
    code = "not_found"


class Conflict(ApiError):
    """The state of the resource does not allow the request."""

    status = 409
    code = "conflict"


class PreconditionFailed(ApiError):
    """If-Match names an older version."""

    status = 412
    code = "precondition_failed"


class Invalid(ApiError):
    """The request is well formed but invalid."""

    status = 422
    code = "invalid"

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(message, pointer)
        self.pointer = pointer
        """JSON pointer to the invalid value."""

    def __str__(self) -> str:
        return str(self.args[0])


class TooLarge(ApiError):
    """The body is larger than the limit."""

    status = 413
    code = "too_large"


class UnsupportedMediaType(ApiError):
    """The content type of the body is not supported."""

    status = 415
    code = "unsupported_media_type"


class Unauthorized(ApiError):
    """The token is missing, or is not accepted."""

    status = 401
    code = "unauthorized"


class Forbidden(ApiError):
    """The token or the origin does not allow the request."""

    status = 403
    code = "forbidden"


class TooManyRequests(ApiError):
    """The token, or the browser session, has made too many requests."""

    status = 429
    code = "too_many_requests"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s
        """Seconds until the next request is accepted."""

    def __str__(self) -> str:
        return str(self.args[0])


class Unavailable(ApiError):
    """The service is stopping or not ready; try again."""

    status = 503
    code = "unavailable"


class DatabaseReplaced(Unavailable):
    """The file of the database was removed, replaced or overwritten while it is in use."""


class UnreadableSecret(Unavailable):
    """A secret cannot be decrypted with the key that the process has."""


class SettingsError(ServiceError):
    """A setting is wrong."""


class StartError(ServiceError):
    """A part of the service cannot start or become ready, or its database cannot be used."""


class RuntimeUnavailable(ServiceError):
    """The Ray cluster does not answer."""
