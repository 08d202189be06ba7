"""Releases of Ray on which the engine `ray-train` was tried; it uses private names of Ray Train."""

from __future__ import annotations

OLDEST, NEWEST = (2, 55), (2, 60)
"""First and last release that was tried; docs/how/ray_train.md says which tests each passes. What
differs between them stands where it is used: `ray_train_internals.py`, with the release.
"""
KNOWN = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def is_known(version: str) -> bool:
    """Return whether the engine was tried on a release, such as `2.60.0`."""
    numbers = version.split(".")[:2]
    return all(one.isdigit() for one in numbers) and OLDEST <= tuple(map(int, numbers)) <= NEWEST


def explain_fallback(version: str) -> str:
    """Return why a job runs on plain actors although its engine is `ray-train`."""
    return (
        f"Ray {version} is installed, and the ray-train engine was tried with Ray {KNOWN}: this"
        " attempt runs on plain actors (workers.engine: actors), without ray.train in its code and"
        " in Ray's list of runs"
    )
