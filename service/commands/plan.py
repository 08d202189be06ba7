"""`plan`: the predicted step time of every method and level, before a job runs."""

from __future__ import annotations

import json as json_text
import os
import re
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands.cli_support import JsonOption, create_console, print_json
from service.commands.format import format_bytes, format_level, format_milliseconds, format_rounded

if TYPE_CHECKING:
    from rich.table import Table

_LINK = re.compile(
    r"(?P<rate>\d+(\.\d+)?)(?P<unit>[kmg])bit(,(?P<delay>\d+(\.\d+)?)(?P<scale>us|ms|s))?",
    re.IGNORECASE,
)
_BITS = {"k": 1e3, "m": 1e6, "g": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def plan(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="spec in YAML or JSON; - for standard input")
    ],
    *,
    workers: Annotated[int, typer.Option(metavar="N", min=2, max=1024, help="number of workers")],
    link: Annotated[
        str,
        typer.Option(
            metavar="LINK",
            help="bandwidth between the workers, and latency in one direction: 100Mbit,8ms",
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="PATH=VALUE", help="set one value of the spec; may be repeated"
        ),
    ] = None,
    measure_s: Annotated[
        float,
        typer.Option(
            "--measure", metavar="SECONDS", min=0.0, help="how long to measure steps (default 5)"
        ),
    ] = 5.0,
    json: JsonOption = False,
) -> None:
    """Predict the step time and bytes of every method and level on a link.

    One worker's step is measured on this machine, which needs what the workers need (torch, the
    data), and should be as fast as theirs.
    """
    from service.commands.pack import pack_code
    from service.commands.spec_file import read_spec

    latency_s, bytes_per_s = parse_link(link)
    spec = read_spec(file, changes or [])
    archive = pack_code(spec, file)
    if archive is not None:
        spec["code"] = sha256(archive).hexdigest()
    link_speed = {"latency_s": latency_s, "bytes_per_s": bytes_per_s}
    typer.echo("measuring a step of one worker and every method on this machine", err=True)
    answer = _ask_planner(
        {"spec": spec, "workers": workers, "measure_s": measure_s, **link_speed}, archive
    )
    if json:
        print_json(answer)
        return
    out = create_console()
    out.print(
        f"a step of one worker without exchanges takes {format_milliseconds(answer['compute_s'])}"
    )
    out.print(_prediction_table(answer["predictions"]))
    out.print(
        "* the method of this spec; its levels are those of the spec, other methods' defaults"
    )


def parse_link(text: str) -> tuple[float, float]:
    """Return the latency in seconds and the bandwidth in bytes per second.

    Raises:
        SettingsError: the text is not of the form `100Mbit` or `100Mbit,8ms`.
    """
    from service.errors import SettingsError

    found = _LINK.fullmatch(text.replace(" ", ""))
    rate = 0.0 if found is None else float(found["rate"]) * _BITS[found["unit"].lower()]
    if found is None or rate <= 0.0:
        raise SettingsError(
            f"--link is {text!r}; give a bandwidth above 0 and, if there is one, a latency, such as"
            " 100Mbit,8ms or 1Gbit"
        )
    latency_s = float(found["delay"] or 0.0) * _SECONDS[(found["scale"] or "s").lower()]
    return latency_s, rate / 8


def _ask_planner(request: dict[str, Any], archive: bytes | None) -> dict[str, Any]:
    """Run the planner, which loads torch, in a process of its own.

    Raises:
        SettingsError: the spec is wrong, or its task cannot be measured here.
    """
    from service.child_processes import inherit_environment
    from service.errors import SettingsError

    with tempfile.TemporaryDirectory() as folder:
        answer_file = Path(folder, "answer.json")
        environment = inherit_environment(lambda _: True)
        if archive is not None:
            code = Path(folder, "code.zip")
            code.write_bytes(archive)
            paths = (str(code), environment.get("PYTHONPATH", ""))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        # -P: modules in the current folder must not replace installed ones.
        done = subprocess.run(  # noqa: S603 - a module of this project
            [sys.executable, "-P", "-m", "workers.planning", str(answer_file)],
            input=json_text.dumps(request),
            env=environment,
            stdout=sys.stderr,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        answer: dict[str, Any] = (
            json_text.loads(answer_file.read_text()) if answer_file.exists() else {}
        )
    if not answer:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise SettingsError(
            f"the step cannot be measured here ({last}); run this where the workers' packages are"
            " installed"
        )
    if "error" in answer:
        sys.stderr.write(done.stderr)
        raise SettingsError(answer["error"])
    return answer


def _prediction_table(predictions: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    columns = ("METHOD", "LEVEL", "STEP", "SAMPLES/S", "ADDED BY EXCHANGES", "SENT", "COLLECTIVES")
    table = Table(*columns, box=None, header_style="dim", pad_edge=False)
    for row in predictions:
        table.add_row(
            row["method"] + ("*" if row["is_own_method"] else ""),
            f"{row['level']} {format_level(row['options'])}".strip(),
            format_milliseconds(row["step_s"]),
            format_rounded(row["samples_per_s"]),
            format_milliseconds(row["exchange_s"]),
            format_bytes(row["sent_bytes"]),
            str(row["collectives"]),
        )
    return table
