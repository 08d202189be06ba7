"""A job's spec and messages as they may leave the service: without values that could be secret;
pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from accordion_workers.common.secret_mask import MASK, MIN_LENGTH, SecretMask, mask_url_logins

_SECRET_NAME = re.compile(
    r"passw|passphrase|pwd|secret|credential|authorization|cookie|connection_?string"
    r"|token$|^tokens$|(access|api|auth|bearer|refresh|session)[^a-z0-9]*tokens"
    r"|(access|account|api|auth|encryption|private|shared|signing)[^a-z0-9]*key",
    re.IGNORECASE,
)
_MAX_LENGTH = 2000
"""Most characters of a text in a spec, of a message, and of a line of output."""
_MAX_MASKED = 256
"""Most values that are looked for in messages, because each takes time."""
_MAX_MASKED_LENGTH = 100_000
"""Most characters of all values that are looked for."""
_SEPARATOR = "\n\0\n"
"""Stands between texts that are masked at once; no stored text has a NUL, and no value a line
break.
"""


class TextMask:
    """Replaces in messages what is hidden in the spec of their job: the values of its environment
    variables and under names such as `api_key`, if they have 6 or more characters, and logins and
    queries in URLs. If there are more than 256 values, or they have more than 100,000 characters,
    it replaces whole messages.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        lines = {line.strip() for value in _list_hidden(spec) for line in str(value).splitlines()}
        kept = [line for line in lines if len(line) >= MIN_LENGTH]
        is_bounded = len(kept) <= _MAX_MASKED and sum(map(len, kept)) <= _MAX_MASKED_LENGTH
        self._mask = SecretMask(kept) if is_bounded else None

    def apply(self, text: str) -> str:
        """Return the beginning of a text without values that could be secret."""
        return self._apply_to_all([text])[0]

    def apply_to_texts(self, value: Any) -> Any:
        """Return a document with each of its texts replaced; its names stay."""
        masked = iter(self._apply_to_all(list(_list_texts(value))))
        return _replace_texts(value, masked)

    def _apply_to_all(self, texts: Sequence[str]) -> list[str]:
        if self._mask is None or not texts:
            return [MASK] * len(texts)
        read = 2 * _MAX_LENGTH + self._mask.longest
        # Python searches long texts in linear time, and short ones not always.
        joined = _SEPARATOR.join(text[:read].replace("\0", "") for text in texts)
        masked = self._mask.apply(joined).split(_SEPARATOR)
        longest = self._mask.longest
        known = (
            found if len(text) <= read else _drop_cut_end(found, longest)
            for text, found in zip(texts, masked, strict=True)
        )
        return [hide_in_urls(text)[:_MAX_LENGTH] for text in known]


def _drop_cut_end(masked: str, longest: int) -> str:
    """Return a text that was cut, without what may be the beginning of a value of the `longest`
    length, or of the login in a URL.
    """
    *words, last = re.split(r"(\s+)", masked[: len(masked) - longest])
    scheme, mark, _ = last.partition("://")
    return "".join((*words, f"{scheme}{mark}{MASK}" if mark else last))


def hide_secrets(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec in which `***` replaces all values of environment variables, texts and numbers
    under names such as `api_key`, the arguments of scripts, and logins and queries in URLs; long
    texts are cut. References to secrets stay: they are names.
    """
    return {
        str(name): _hide_env(value) if _is_env(name, value) else _hide_in(str(name), value)
        for name, value in spec.items()
    }


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    items = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list | tuple):
        for item in items:
            yield from _list_texts(item)


def _replace_texts(value: Any, texts: Iterator[str]) -> Any:
    """Return a document with the next of these texts in place of each of its own."""
    if isinstance(value, Mapping):
        return {name: _replace_texts(item, texts) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_texts(item, texts) for item in value]
    return next(texts) if isinstance(value, str) else value


def hide_in_urls(text: str) -> str:
    """Return a text in which `***` replaces logins in URLs, and all of a URL after a `?`."""
    words = re.split(r"(\s+)", mask_url_logins(text))
    return "".join(_hide_query(word) if "://" in word else word for word in words)


def _hide_query(word: str) -> str:
    scheme, mark, address = word.partition("://")
    place, question, _ = address.partition("?")
    return f"{scheme}{mark}{place}{question}{MASK if question else ''}"


def _hide_env(env: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): dict(value) if _is_reference(value) else MASK for name, value in env.items()}


def _hide_in(name: str, value: Any, *, hidden: bool = False) -> Any:
    """Return a value without secrets; `hidden` says whether it lies under a secret's name."""
    hidden = hidden or _is_secret(name)
    if isinstance(value, Mapping):
        if hidden and _is_reference(value):
            return dict(value)
        return {str(key): _hide_in(str(key), item, hidden=hidden) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hide_in(name, item, hidden=hidden) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if hidden or (name == "args" and isinstance(value, str)):
        return MASK
    return _shorten_text(hide_in_urls(value)) if isinstance(value, str) else value


def _list_hidden(spec: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the values that `hide_secrets` replaces as a whole, but not arguments of scripts, which
    hold more than secrets.
    """
    for name, value in spec.items():
        if _is_env(name, value):
            for item in value.values():
                yield from _list_values(str(name), item, hidden=True)
        else:
            yield from _list_values(str(name), value, hidden=False)


def _list_values(name: str, value: Any, *, hidden: bool) -> Iterator[Any]:
    """Yield the values that lie under a secret's name."""
    hidden = hidden or _is_secret(name)
    if isinstance(value, Mapping):
        if not (hidden and _is_reference(value)):
            for key, item in value.items():
                yield from _list_values(str(key), item, hidden=hidden)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _list_values(name, item, hidden=hidden)
    elif hidden and value is not None and not isinstance(value, bool):
        yield value


def _is_env(name: Any, value: Any) -> bool:
    return name == "env" and isinstance(value, Mapping)


def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _is_reference(value: Any) -> bool:
    """Whether a value names a secret of the service, as `{"secret": "hf"}`."""
    return isinstance(value, Mapping) and list(value) == ["secret"]


def _shorten_text(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}… ({len(text)} characters)"
