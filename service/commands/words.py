"""Numbers and records as short texts for people; pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

_MAX_LAYERS_SHOWN = 6
"""With more layers than this they are counted instead of listed."""
_OVERRIDE_ID = re.compile(r"override ([0-9a-f]{8}-[0-9a-f-]{4,27})")
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size(count: float) -> str:
    """Bytes, in the unit that fits."""
    unit = 0
    while count >= 1000 and unit < len(_BYTE_UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.0f} {_BYTE_UNITS[unit]}" if unit == 0 else f"{count:.3g} {_BYTE_UNITS[unit]}"


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours; a question mark where nobody knows."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return (
        f"{minutes} min {rest:02d} s"
        if minutes < 100
        else f"{minutes // 60} h {minutes % 60:02d} min"
    )


def number(value: float | None, digits: int = 4) -> str:
    """A measured value; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}g}"


def sent(bytes_: Mapping[str, int]) -> str:
    """Bytes sent against what plain training would have sent."""
    payload, dense, fp16 = (bytes_[name] for name in ("payload", "dense", "fp16"))
    return f"{size(payload)} of {size(dense)} (fp16 {size(fp16)}){_beside_dense(payload, dense)}"


def _beside_dense(payload: int, dense: int) -> str:
    if not payload or not dense:
        return ""
    ratio = dense / payload
    if f"{ratio:.1f}" == "1.0":
        return ", as much as dense"
    return f", {ratio:.1f}x less than dense" if ratio > 1 else f", {1 / ratio:.1f}x more than dense"


def saved(bytes_: Mapping[str, int]) -> str:
    """How many times fewer bytes than dense."""
    return f"{bytes_['dense'] / bytes_['payload']:.1f}x" if bytes_["payload"] else "-"


def layers(
    regimes: Mapping[str, str], levels: Mapping[str, str], said_by: Mapping[str, str] | None = None
) -> str:
    """Regime and level of each layer, or how many there are of each; layers a person decided carry
    a star.
    """
    by_hand = said_by or {}
    words = {
        name: f"{regimes.get(name, '?')} {level}{'*' if name in by_hand else ''}"
        for name, level in levels.items()
    }
    if len(words) > 1 and len(set(words.values())) == 1:
        return f"all {len(words)} {next(iter(words.values()))}"
    if len(words) <= _MAX_LAYERS_SHOWN:
        return "  ".join(f"{name} {word}" for name, word in words.items())
    return "  ".join(f"{count} x {word}" for word, count in Counter(words.values()).most_common())


def named(text: str, numbers: Mapping[str, int]) -> str:
    """A text in which overrides go by their ids, or by how these begin, with their numbers, which
    people know.
    """

    def number(found: re.Match[str]) -> str:
        fitting = [
            number for override_id, number in numbers.items() if override_id.startswith(found[1])
        ]
        return f"override #{fitting[0]}" if fitting else found[0]

    return _OVERRIDE_ID.sub(number, text)


def asked(override: Mapping[str, Any]) -> str:
    """An override's number, what it wants, and how far it got."""
    until = f" until epoch {override['until']}" if override["until"] is not None else ""
    start = override["apply_at"]
    start = (
        f" from epoch {start}"
        if isinstance(start, int)
        else ""
        if start == "next_step"
        else " from the next epoch"
    )
    about = "the batch" if override.get("target") == "batch" else ", ".join(override["layers"])
    wish = f"#{override['number']}: {level(override['level'])} for {about}{start}{until}"
    return f"{wish}: {override['state']}{_how_far(override)}"


def _how_far(override: Mapping[str, Any]) -> str:
    """Where it was applied and by how many ranks, or why not."""
    if override["state"] == "APPLIED":
        ranks = f"{override['acks']} of {override['world_size']} ranks"
        return f" in epoch {override['epoch']}, step {override['step']}, by {ranks}"
    return f" ({override['message']})" if override["message"] else ""


def level(value: Any) -> str:
    """A level as it was asked for."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={option}" for name, option in value.items())
    return str(value)
