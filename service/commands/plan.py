"""`plan`: the predicted step time of every method and level, before a job runs."""

from __future__ import annotations

import re
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.commands.cli_support import (
    ChangesOption,
    JsonOption,
    SpecArgument,
    UrlOption,
    connect_client,
    create_console,
    print_json,
)
from service.commands.format import format_bytes, format_level, format_milliseconds, format_rounded

if TYPE_CHECKING:
    from rich.table import Table

    from service.api.plan_schemas import PlanView
    from service.client import Client

_LINK = re.compile(
    r"(?P<rate>\d+(\.\d+)?)(?P<unit>[kmg])bit(,(?P<delay>\d+(\.\d+)?)(?P<scale>us|ms|s))?",
    re.IGNORECASE,
)
POLL_S = 0.5
"""Seconds between two requests for the status of a plan."""
_BITS = {"k": 1e3, "m": 1e6, "g": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def plan(
    file: SpecArgument,
    *,
    workers: Annotated[int, typer.Option(metavar="N", min=2, max=1024, help="number of workers")],
    link: Annotated[
        str,
        typer.Option(
            metavar="LINK",
            help="bandwidth between the workers, and latency in one direction: 100Mbit,8ms",
        ),
    ],
    changes: ChangesOption = None,
    measure_s: Annotated[
        float,
        typer.Option(
            "--measure", metavar="SECONDS", min=0.0, help="how long to measure steps (default 5)"
        ),
    ] = 5.0,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="measure on the cluster of the service instead of this machine; Ctrl-C cancels",
        ),
    ] = False,
    url: UrlOption = "",
    json: JsonOption = False,
) -> None:
    """Predict the step time and bytes of every method and level on a link.

    One worker's step is measured: on this machine, which needs what the workers need (torch, the
    data) and should be as fast as theirs, or with --cluster where the workers run.
    """
    from service.commands.pack import pack_code
    from service.commands.spec_file import read_spec

    latency_s, bytes_per_s = parse_link(link)
    spec = read_spec(file, changes or [])
    archive = pack_code(spec, file)
    if archive is not None:
        spec["code"] = sha256(archive).hexdigest()
    link_speed = {"latency_s": latency_s, "bytes_per_s": bytes_per_s}
    request = {"spec": spec, "workers": workers, "measure_s": measure_s, **link_speed}
    where = "on the cluster" if cluster else "on this machine"
    typer.echo(f"measuring a step of one worker and every method {where}", err=True)
    answer = _ask_service(request, archive, url) if cluster else _ask_planner(request, archive)
    if json:
        print_json(answer)
        return
    out = create_console()
    out.print(
        f"a step of one worker without exchanges takes {format_milliseconds(answer['compute_s'])}"
    )
    out.print(_prediction_table(answer["predictions"]))
    out.print("* this spec's method, at the spec's levels; other methods at their default levels")


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
    """Run the planner on this machine.

    Raises:
        SettingsError: the spec is wrong, or its task cannot be measured here.
    """
    from service.child_processes import inherit_environment
    from service.errors import SettingsError
    from workers.planning.planner_process import run_planner

    environment = inherit_environment(lambda _: True) | _read_variables(request["spec"])
    _add_data(request["spec"], environment)
    answer = run_planner(request, code=archive, environment=environment)
    if "error" in answer:
        raise SettingsError(answer["error"])
    return answer


def _read_variables(spec: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a spec that nobody has checked yet, without references to secrets:
    the service alone knows these, and here the caller's own variables take their place.
    """
    env = spec.get("env")
    if not isinstance(env, dict):
        return {}
    return {name: str(value) for name, value in env.items() if isinstance(value, str | int)}


def _add_data(spec: dict[str, Any], environment: dict[str, str]) -> None:
    """Add the variables with the paths of data that are on this machine.

    Raises:
        SettingsError: the variable of data that are fetched for jobs is not set.
    """
    from service.errors import SettingsError
    from workers.contract import name_variable

    data = spec.get("data")
    for name, location in data.items() if isinstance(data, dict) else ():
        variable = name_variable(str(name))
        if str(location).startswith("/"):
            environment.setdefault(variable, str(location))
        elif variable not in environment:
            raise SettingsError(
                f"the spec names data {name!r} at {location}, and a plan fetches none; set"
                f" {variable} to a path on this machine that has them"
            )


def _ask_service(request: dict[str, Any], archive: bytes | None, url: str) -> dict[str, Any]:
    """Let the service measure on its cluster, and wait for the answer.

    Raises:
        SettingsError: the plan failed or was cancelled.
    """
    from service.errors import SettingsError

    spec, workers = request["spec"], request["workers"]
    section = spec.get("workers", {})
    if isinstance(section, dict):
        spec = {**spec, "workers": {**section, "min": 1, "max": workers}}
    with connect_client(url) as client:
        if archive is not None:
            client.upload(archive)
        found = client.plan(
            spec,
            mbit_per_s=8e-6 * request["bytes_per_s"],
            latency_ms=1e3 * request["latency_s"],
            measure_s=request["measure_s"],
        )
        try:
            found = _wait_for_result(client, found)
        except KeyboardInterrupt:
            typer.echo(f"cancelling plan {found.id}", err=True)
            client.cancel_plan(found.id)
            raise
    if found.status != "SUCCEEDED":
        raise SettingsError(found.message or f"plan {found.id} is {found.status}")
    return found.model_dump(mode="json", include={"compute_s", "predictions"})


def _wait_for_result(client: Client, plan: PlanView) -> PlanView:
    """Poll a plan until its status is final, and print every new status."""
    while plan.status in {"QUEUED", "RUNNING"}:
        before = plan.status
        time.sleep(POLL_S)
        plan = client.plan_result(plan.id)
        if plan.status != before:
            typer.echo(f"plan {plan.id} is {plan.status}", err=True)
    return plan


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
