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
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = Path(__file__).with_name("schemathesis.toml")
SECONDS = 600


def main(arguments: Sequence[str]) -> int:
    """Run once, and return the exit status."""
    options = _parse(arguments)
    tokens = os.environ.get("TOKENS", "").split()
    limit = ["--max-examples", options.examples] if options.examples else []
    limit += [] if options.examples else ["--max-time", options.seconds]
    return run_schemathesis(options.url, tokens, *map(str, limit)).returncode


def run_schemathesis(
    url: str, tokens: Sequence[str], *options: str, capture: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run schemathesis as the user of the first token; without one, as anybody."""
    with tempfile.TemporaryDirectory(prefix="schema-") as name:
        folder = Path(name)
        (folder / "openapi.json").write_bytes(_fetch_schema(url, tokens))
        (folder / "settings.toml").write_text(_write_settings(folder, tokens))
        command = [sys.executable, "-m", "schemathesis.cli"]
        command += ["--config-file", str(folder / "settings.toml"), "run"]
        command += [str(folder / "openapi.json"), "--url", url, "--no-color", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # of the hooks
        return subprocess.run(
            command, cwd=folder, env=environment, check=False, text=True, capture_output=capture
        )


def _fetch_schema(url: str, tokens: Sequence[str]) -> bytes:
    headers = {"Authorization": f"Bearer {tokens[0]}"} if tokens else {}
    request = urllib.request.Request(f"{url}/openapi.json", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        content: bytes = response.read()
    return content


def _write_settings(folder: Path, tokens: Sequence[str]) -> str:
    """Return the settings with the tokens, which are in a file for the format's sake."""
    if not tokens:
        return SETTINGS.read_text()
    names = [f"user-{number}" for number in range(len(tokens))]
    users = [
        {"name": name, "fixedHeaders": [{"name": "Authorization", "value": f"Bearer {token}"}]}
        for name, token in zip(names, tokens, strict=True)
    ]
    (folder / "users.json").write_text(json.dumps({"auth": users}))
    lines = ["", "[auth.wfc]", f'path = "{folder}/users.json"', f'user = "{names[0]}"']
    lines += [f"peers = {json.dumps(names)}"] if len(names) > 1 else []
    return SETTINGS.read_text() + "\n".join(lines) + "\n"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="address of the service")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--seconds", type=int, default=SECONDS, help=f"default: {SECONDS}")
    limit.add_argument("--examples", type=int, help="requests of each kind for each operation")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
