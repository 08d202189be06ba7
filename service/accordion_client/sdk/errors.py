"""Errors of the client, in one tree.

    ClientError
    ├── Unreachable             no Accordion service responds at the address
    ├── APIStatusError          the service rejected the request; `status` has the HTTP status
    │   ├── ServiceFailed       5xx: the service cannot do it now
    │   └── Refused             4xx: the request is wrong
    │       └── NotFound        404: there is no such job, override, plan, user or token
    └── AmbiguousJob            a name or ID prefix matches no job, or several

All have messages for users and can be pickled.
"""

from __future__ import annotations


class ClientError(Exception):
    """Root of the client's errors."""


class Unreachable(ClientError):
    """Nothing responds at the address, or it is not this service."""


class APIStatusError(ClientError):
    """The service returned an error; `status` is the HTTP status, `code` the stable error code."""

    def __init__(self, message: str, status: int = 500, code: str = "internal") -> None:
        super().__init__(message, status, code)
        self.status = status
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class ServiceFailed(APIStatusError):
    """The service cannot do it now; trying again may help."""


class Refused(APIStatusError):
    """The request is wrong; repeating it does not help."""


class NotFound(Refused):
    """There is no such job, override, plan, user or token."""


class AmbiguousJob(ClientError):
    """The reference matches no job, or several; `newest_ended` is the id of the newest of several
    ended jobs.
    """

    def __init__(self, message: str, newest_ended: str | None = None) -> None:
        super().__init__(message, newest_ended)
        self.newest_ended = newest_ended

    def __str__(self) -> str:
        return str(self.args[0])


__all__ = [
    "APIStatusError",
    "AmbiguousJob",
    "ClientError",
    "NotFound",
    "Refused",
    "ServiceFailed",
    "Unreachable",
]
