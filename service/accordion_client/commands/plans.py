"""`plan`: the predicted step time of every method and level, before a job runs."""

from __future__ import annotations

import re
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accordion_client.commands.cli_support import (
    FAILED,
    ChangesOption,
    JsonOption,
    SpecArgument,
    UrlOption,
    connect_client,
    create_console,
    parse_whole,
    print_json,
)
from accordion_client.commands.local_specs import build_environment, check_spec, name_option
from accordion_client.commands.model_source import resolve_warm_start
from accordion_client.commands.planned_runs import describe_runs
from accordion_service.domain.byte_sizes import format_bytes
from accordion_service.schemas.format import format_level, format_milliseconds, format_rounded

if TYPE_CHECKING:
    from rich.table import Table

    from accordion_client import Client
    from accordion_service.schemas.plans import PlanView

_LINK = re.compile(
    r"(?P<rate>\d+(\.\d+)?)(?P<unit>[kmg])(bit(/s)?|(?-i:bps))(,(?P<delay>\d+(\.\d+)?)(?P<scale>us|ms|s))?",
    re.IGNORECASE,
)
POLL_S = 0.5
"""Seconds between two requests for the status of a plan."""
MAX_WORKERS = 1024
"""Largest number of workers of a job."""
MIN_LEAD = 1.1
"""Factor within which two predicted steps are about as fast: half of the predictions are that far
from the measured step.
"""
_ANSWER = {"compute_s", "predictions", "local_steps", "shard_bytes", "runs"}
"""What the planner answers."""
_BITS = {"k": 1e3, "m": 1e6, "g": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def plan(
    file: SpecArgument,
    *,
    workers: Annotated[
        str, typer.Option(metavar="N", help=f"number of workers, 2 to {MAX_WORKERS}")
    ],
    link: Annotated[
        str,
        typer.Option(
            metavar="LINK",
            help=(
                "bandwidth between the workers (kbit, Mbit, Gbit: per second), and latency in one"
                " direction (us, ms, s): 100Mbit,8ms"
            ),
        ),
    ],
    changes: ChangesOption = None,
    measure_s: Annotated[
        float,
        typer.Option(
            "--measure",
            metavar="SECONDS",
            min=0.0,
            max=60.0,
            help="how long to measure steps (default 5)",
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
    """Predict the step time and bytes of every method and level on a link, and plan the epochs.

    One worker's step is measured: on this machine, which needs what the workers need (torch, the
    data) and should be as fast as theirs, or with --cluster where the workers run.
    """
    from accordion_client.commands.pack import pack_code
    from accordion_client.commands.spec_file import read_spec

    num_workers = parse_workers(workers)
    latency_s, bytes_per_s = parse_link(link)
    spec = read_spec(file, changes or [])
    archive = pack_code(spec, file)
    if archive is not None:
        spec["code"] = sha256(archive).hexdigest()
    link_speed = {"latency_s": latency_s, "bytes_per_s": bytes_per_s}
    request = {"spec": spec, "workers": num_workers, "measure_s": measure_s, **link_speed}
    if cluster:
        found = _ask_service(request, archive, url)
        if found.status != "SUCCEEDED":
            _report_failure(found, json=json)
            raise typer.Exit(FAILED)
        answer = found.model_dump(mode="json", include=_ANSWER)
    else:
        spec.pop("warm_start", None)  # a step takes as long with any model
        answer = _ask_planner(request, archive)
    if json:
        print_json(answer)
        return
    out = create_console()
    out.print(
        f"a step of one worker without exchanges takes {format_milliseconds(answer['compute_s'])}"
    )
    out.print(_prediction_table(answer["predictions"]))
    out.print("* this spec's method, at the spec's levels; other methods at their default levels")
    if answer["shard_bytes"] is not None:
        out.print(
            f"each worker holds {format_bytes(answer['shard_bytes'])} of parameters; its gradients,"
            " each moment of the optimizer and a residual take as much. Bytes and link are those of"
            " a replica, and what its workers exchange among themselves is not counted"
        )
    gain = describe_gain(answer["predictions"], shortest_s=_read_shortest_step(spec))
    if gain:
        out.print(gain)
    for part in describe_runs(answer):
        out.print(part)


def parse_workers(text: str) -> int:
    """Return the number of workers.

    Raises:
        SettingsError: it is no number, or out of range.
    """
    from accordion_service.errors import SettingsError

    number = parse_whole(text.strip()) or 0
    if not 2 <= number <= MAX_WORKERS:
        raise SettingsError(
            f"--workers is {text!r}; give a whole number from 2 to {MAX_WORKERS}: one worker"
            " exchanges nothing"
        )
    return number


def parse_link(text: str) -> tuple[float, float]:
    """Return the latency in seconds and the bandwidth in bytes per second.

    Raises:
        SettingsError: the text is not of the form `100Mbit` or `100Mbit,8ms`.
    """
    from accordion_service.errors import SettingsError

    found = _LINK.fullmatch(text.replace(" ", ""))
    rate = 0.0 if found is None else float(found["rate"]) * _BITS[found["unit"].lower()]
    if found is None or rate <= 0.0:
        raise SettingsError(
            f"--link is {text!r}; give a bandwidth above 0 in kbit, Mbit or Gbit (per second) and,"
            " if there is one, a latency in us, ms or s, such as 100Mbit,8ms or 1Gbit"
        )
    latency_s = float(found["delay"] or 0.0) * _SECONDS[(found["scale"] or "s").lower()]
    return latency_s, rate / 8


def _ask_planner(request: dict[str, Any], archive: bytes | None) -> dict[str, Any]:
    """Run the planner on this machine.

    Raises:
        SettingsError: the spec is wrong, or its task cannot be measured here.
    """
    from accordion_service.errors import SettingsError
    from accordion_workers.planning.plan_checks import explain_refusal
    from accordion_workers.planning.planner_process import run_planner

    check_spec(_set_workers(request), explain_refusal)
    environment = build_environment(request["spec"])
    _report_start("on this machine")
    answer = run_planner(request, code=archive, environment=environment)
    if "error" in answer:
        raise SettingsError(answer["error"])
    return answer


def _set_workers(request: dict[str, Any]) -> dict[str, Any]:
    """Return the spec with the requested number of workers."""
    spec, section = request["spec"], request["spec"].get("workers", {})
    if not isinstance(section, dict):
        return dict(spec)
    return {**spec, "workers": {**section, "min": request["workers"], "max": request["workers"]}}


def _report_start(where: str) -> None:
    typer.echo(f"measuring a step of one worker and every method {where}", err=True)


def _ask_service(request: dict[str, Any], archive: bytes | None, url: str) -> PlanView:
    """Let the service measure on its cluster, and return the plan once its status is final.

    Raises:
        SettingsError: the service refused the plan.
        AmbiguousJob: `warm_start` names no job, or several that have not ended.
    """
    with connect_client(url) as client:
        resolve_warm_start(client, request["spec"])
        if archive is not None:
            client.upload(archive)
        found = _add_plan(client, request)
        try:
            _report_start("on the cluster")
            found = _wait_for_result(client, found)
        except KeyboardInterrupt:
            typer.echo(f"cancelling plan {found.id}", err=True)
            client.cancel_plan(found.id)
            raise
    return found


def _add_plan(client: Client, request: dict[str, Any]) -> PlanView:
    """Request the plan.

    Raises:
        SettingsError: the service refused it.
    """
    from accordion_client import Refused
    from accordion_service.errors import SettingsError

    try:
        return client.plan(
            _set_workers(request),
            mbit_per_s=8e-6 * request["bytes_per_s"],
            latency_ms=1e3 * request["latency_s"],
            measure_s=request["measure_s"],
        )
    except Refused as error:
        raise SettingsError(name_option(str(error))) from None


def _report_failure(plan: PlanView, *, json: bool) -> None:
    if json:
        print_json(plan)
    message = plan.message or f"plan {plan.id} is {plan.status}"
    typer.echo(f"accordion: {message}", err=True)


def _wait_for_result(client: Client, plan: PlanView) -> PlanView:
    """Poll a plan until its status is final, and print every new status."""
    while plan.status in {"QUEUED", "RUNNING"}:
        before = plan.status
        time.sleep(POLL_S)
        plan = client.plan_result(plan.id)
        if plan.status != before:
            typer.echo(f"plan {plan.id} is {plan.status}", err=True)
    return plan


def describe_gain(predictions: list[dict[str, Any]], *, shortest_s: float) -> str:
    """Return in one line how many times as fast the spec's method and 16 bits are as no
    compression; empty without a prediction for it.

    `shortest_s` are the seconds that a step of the job takes at least.
    """
    none_s = next((row["step_s"] for row in predictions if _is_dense_step(row)), None)
    if none_s is None:
        return ""
    if none_s <= shortest_s:
        return (
            f"a step takes at least {format_milliseconds(shortest_s)} with any method, because of"
            " the task's option min_step_s; leave it out to compare methods"
        )
    own = [row for row in predictions if row["is_own_method"] and not _is_dense_step(row)]
    rows = {_name_row(row): row for row in own or predictions[:1]}
    rows |= {row["method"]: row for row in predictions if row["method"] == "half"}
    gains = [
        f"{name} {format_rounded(none_s / row['step_s'], 2)} times"
        for name, row in rows.items()
        if not _is_dense_step(row)
    ]
    text = f"steps per second, against none: {', '.join(gains)}"
    others = [row["step_s"] for row in predictions if not _is_dense_step(row)]
    if others and none_s < min(others) / MIN_LEAD:
        text += "; none is the fastest"
    elif others and none_s < min(others) * MIN_LEAD:
        text += (
            "; none is about as fast as the fastest; the policy cost_aware finds out by measuring"
        )
    if any(row["step_s"] <= shortest_s for row in rows.values()):
        text += f"; min_step_s makes all steps last at least {format_milliseconds(shortest_s)}"
    return text


def _is_dense_step(row: dict[str, Any]) -> bool:
    return (row["method"], row.get("local_steps", 1)) == ("none", 1)


def _name_row(row: dict[str, Any]) -> str:
    name, steps = f"{row['method']} {row['level']}".strip(), row.get("local_steps", 1)
    return name if steps == 1 else f"{name} every {steps} steps"


def _read_shortest_step(spec: dict[str, Any]) -> float:
    """Return the task's option `min_step_s` in a spec that was accepted."""
    task = spec.get("task")
    options = task.get("options") if isinstance(task, dict) else None
    return float((options or {}).get("min_step_s", 0.0))


def _format_round(steps: int) -> str:
    return "step" if steps == 1 else f"{steps} steps"


def _prediction_table(predictions: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    times = ("STEP", "SAMPLES/S", "ADDED BY EXCHANGES", "SENT", "COLLECTIVES")
    columns = ("METHOD", "LEVEL", "EXCHANGED EVERY", *times)
    table = Table(*columns, box=None, header_style="dim", pad_edge=False)
    for row in predictions:
        table.add_row(
            row["method"] + ("*" if row["is_own_method"] else ""),
            f"{row['level']} {format_level(row['options'])}".strip(),
            _format_round(row.get("local_steps", 1)),
            format_milliseconds(row["step_s"]),
            format_rounded(row["samples_per_s"]),
            format_milliseconds(row["exchange_s"]),
            format_bytes(row["sent_bytes"]),
            str(row["collectives"]),
        )
    return table
