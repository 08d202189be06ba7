"""Methods that are written once, for `Client` and for `AsyncClient`.

They are coroutines and asynchronous generators, which `AsyncClient` has as they are. In `Client`, a
call runs the same code to its end (`blocking.py`).

A shared method uses `RequestSender` and calls no other shared method, because in `Client` that
would block and return no coroutine; mypy reports such a call.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from accordion_client.sdk.blocking import iterate_blocking, run_coroutine

_Params = ParamSpec("_Params")
_Answer = TypeVar("_Answer")
_Blocked = TypeVar("_Blocked")
_Awaited = TypeVar("_Awaited")


class Blocking:
    """Base of a client whose shared methods return results."""


class Awaiting:
    """Base of a client whose shared methods return coroutines and asynchronous generators."""


class SharedMethod(Generic[_Params, _Blocked, _Awaited]):
    """Method that returns `_Blocked` in `Client` and `_Awaited` in `AsyncClient`."""

    def __init__(
        self,
        function: Callable[Concatenate[Any, _Params], _Awaited],
        finish: Callable[[_Awaited], _Blocked],
    ) -> None:
        @wraps(function)
        def call(client: Any, *args: _Params.args, **kwargs: _Params.kwargs) -> _Blocked:
            return finish(function(client, *args, **kwargs))

        signature = inspect.signature(function)
        returned = str(signature.return_annotation).replace("AsyncGenerator", "Generator")
        # The reference and `help(Client)` show it.
        vars(call)["__signature__"] = signature.replace(return_annotation=returned)
        self._awaiting, self._blocking = function, call

    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[_Params, _Blocked]: ...

    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[_Params, _Awaited]: ...

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., _Blocked | _Awaited]: ...

    def __get__(self, client: object, owner: type) -> Callable[..., _Blocked | _Awaited]:
        function = self._blocking if issubclass(owner, Blocking) else self._awaiting
        return function if client is None else MethodType(function, client)


def shared_method(
    function: Callable[Concatenate[Any, _Params], Coroutine[Any, Any, _Answer]],
) -> SharedMethod[_Params, _Answer, Coroutine[Any, Any, _Answer]]:
    """Share a coroutine: `Client` returns its result."""
    return SharedMethod(function, run_coroutine)


def shared_iterator(
    function: Callable[Concatenate[Any, _Params], AsyncGenerator[_Answer, None]],
) -> SharedMethod[_Params, Iterator[_Answer], AsyncGenerator[_Answer, None]]:
    """Share an asynchronous generator: `Client` returns an iterator."""
    return SharedMethod(function, iterate_blocking)
