"""Tests a running service with schemathesis, with the settings of `schemathesis.toml`.

`TOKENS="TOKEN ..." python -m tests.api.schema_run URL [--seconds N | --examples N]`

The first token makes the requests. Tokens of other users may follow: they must not see what it
created. The service gets jobs, users and tokens with random values, so use one that nobody needs.
The status is that of schemathesis: 0 if it finds nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = Path(__file__).with_name("schemathesis.toml")
SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """What belongs to somebody who makes no request."""

    parameters: Mapping[str, str] = field(default_factory=dict)
    """Values that name it, by parameter, such as `path.job_id`; half of the requests get them."""
    text: str | None = None
    """What it contains, and no response may."""


NOTHING = Foreign()


def main(arguments: Sequence[str]) -> int:
    """Run once, and return the exit status."""
    options = _parse(arguments)
    tokens = os.environ.get("TOKENS", "").split()
    limit = [] if options.examples else ["--max-time", str(options.seconds)]
    return run_schemathesis(options.url, tokens, *limit, examples=options.examples).returncode


def run_schemathesis(
    url: str,
    tokens: Sequence[str],
    *options: str,
    examples: int | None = None,
    foreign: Foreign = NOTHING,
    capture: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run schemathesis as the user of the first token; without one, as anybody.

    `examples` are the requests of each kind for each operation; the number of sequences along the
    links is a setting of its own.
    """
    with tempfile.TemporaryDirectory(prefix="schema-") as name:
        folder = Path(name)
        (folder / "openapi.json").write_bytes(_fetch_schema(url, tokens))
        settings = SETTINGS.read_text() + _list_users(folder, tokens) + _list_values(foreign)
        settings += f"\n[generation]\nmax-examples = {examples}\n" if examples else ""
        (folder / "settings.toml").write_text(settings)
        command = [sys.executable, "-m", "schemathesis.cli"]
        command += ["--config-file", str(folder / "settings.toml"), "run"]
        command += [str(folder / "openapi.json"), "--url", url, "--no-color", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # of the hooks
        if tokens:
            environment["OWN_TOKEN_ID"] = tokens[0].partition("_")[2].partition("_")[0]
        if foreign.text is not None:
            environment["HIDDEN_TEXT"] = foreign.text
        return subprocess.run(
            command, cwd=folder, env=environment, check=False, text=True, capture_output=capture
        )


def _fetch_schema(url: str, tokens: Sequence[str]) -> bytes:
    headers = {"Authorization": f"Bearer {tokens[0]}"} if tokens else {}
    request = urllib.request.Request(f"{url}/openapi.json", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        content: bytes = response.read()
    return content


def _list_users(folder: Path, tokens: Sequence[str]) -> str:
    """Return the settings of the users; their tokens are in a file for the format's sake."""
    if not tokens:
        return ""
    names = [f"user-{number}" for number in range(len(tokens))]
    users = [
        {"name": name, "fixedHeaders": [{"name": "Authorization", "value": f"Bearer {token}"}]}
        for name, token in zip(names, tokens, strict=True)
    ]
    (folder / "users.json").write_text(json.dumps({"auth": users}))
    lines = ["", "[auth.wfc]", f'path = "{folder}/users.json"', f'user = "{names[0]}"']
    lines += [f"peers = {json.dumps(names)}"] if len(names) > 1 else []
    return "\n".join(lines) + "\n"


def _list_values(foreign: Foreign) -> str:
    """Return the settings of the parameters that name what belongs to others."""
    lines = ["", "[parameters]"]
    for number, name in enumerate(foreign.parameters):
        lines.append(f'"{name}" = {{dictionary = "foreign-{number}", probability = 0.5}}')
    for number, value in enumerate(foreign.parameters.values()):
        lines += [f"[dictionaries.foreign-{number}]", f"values = [{json.dumps(value)}]"]
    return "\n".join(lines) + "\n" if foreign.parameters else ""


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="address of the service")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--seconds", type=int, default=SECONDS, help=f"default: {SECONDS}")
    limit.add_argument("--examples", type=int, help="requests of each kind for each operation")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
