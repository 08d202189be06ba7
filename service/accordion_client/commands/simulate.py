"""`simulate`: a job trained by pretended workers on this machine, without the service."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accordion_client.commands.cli_support import (
    FAILED,
    ChangesOption,
    JsonOption,
    SpecArgument,
    create_console,
    print_json,
)
from accordion_client.commands.local_specs import build_environment, check_spec
from accordion_client.commands.missing_packages import check_packages

if TYPE_CHECKING:
    from accordion_client.commands.simulations import SeedRun
    from accordion_workers.simulation.simulated_runs import SimulatedRun

MAX_WORKERS = 64
"""Most simulated workers: each has a model of its own, and all compute one after the other."""
MAX_SEEDS = 100
_SEEDS = re.compile(r"\d{1,10}(-\d{1,10})?")
"""A seed or a range; the largest seed of a job has ten digits."""


def simulate(
    file: SpecArgument,
    *,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_WORKERS, help="number of simulated workers")
    ],
    seeds: Annotated[
        str,
        typer.Option(
            metavar="SEEDS", help="seeds, such as 0,1,2 or 0-2 (default: the spec's training.seed)"
        ),
    ] = "",
    changes: ChangesOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="where runs are kept and go on (default: simulations/NAME)",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="cpu, or a GPU that all workers share: cuda:0")
    ] = "cpu",
    processes: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="seeds at the same time (default: the processors; 1 on a GPU)"
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train a job with pretended workers in one process, and print what it learned and sent.

    The workers take turns on one device, with the job's own loop, methods, policy and local steps.
    Ctrl-C saves, and the same command goes on. accordion compare FOLDER... and accordion report
    FOLDER... show simulations side by side.
    """
    from accordion_client.commands.group_tables import print_group
    from accordion_client.commands.pack import pack_code
    from accordion_client.commands.run_groups import RunGroup
    from accordion_client.commands.simulated_jobs import read_simulated
    from accordion_client.commands.simulations import Simulations
    from accordion_client.commands.spec_file import read_spec

    check_packages("a simulation trains on this machine and", "torch", extra="train")
    spec = read_spec(file, changes or [])
    archive = pack_code(spec, file)
    if archive is not None:
        spec["code"] = sha256(archive).hexdigest()
    numbers = parse_seeds(seeds)
    seeds_or_own: Sequence[int | None] = numbers or [None]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as locks:
        wanted = [_build_run(spec, workers=workers, seed=seed) for seed in seeds_or_own]
        _report_replicas(workers=workers, simulated=wanted[0].workers)
        environment = build_environment(spec)
        runs = _claim_runs(wanted, out, locks)
        code = Path(folder, "code.zip")
        if archive is not None:
            code.write_bytes(archive)
        simulations = Simulations(
            runs,
            code=None if archive is None else code,
            environment=environment,
            device=device,
            processes=processes or (1 if device != "cpu" else os.cpu_count() or 1),
        )
        ended = simulations.run()
    histories = [read_simulated(one.folder, one.run) for one in ended]
    group = RunGroup.of_histories(runs[0].run.name, histories, workers=wanted[0].workers)
    if json:
        print_json(asdict(group))
    else:
        out_console = create_console()
        for part in print_group(group):
            out_console.print(part)
    _report_unfinished(ended)


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that a text lists, `0,1,2` or `0-2`; none for an empty text.

    Raises:
        SettingsError: it lists no seeds, one twice, or more than `MAX_SEEDS`.
    """
    from accordion_service.errors import SettingsError

    seeds: list[int] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        first, _, last = part.partition("-")
        if not _SEEDS.fullmatch(part) or int(last or first) < int(first):
            raise SettingsError(
                f"--seeds has {part!r}; give whole numbers from 0 on, such as 0,1,2 or 0-2"
            )
        seeds += range(int(first), min(int(last or first), int(first) + MAX_SEEDS) + 1)
    if text and not 0 < len(set(seeds)) == len(seeds) <= MAX_SEEDS:
        raise SettingsError(
            f"--seeds is {text!r}; give from 1 to {MAX_SEEDS} seeds, each once, such as 0-2"
        )
    return seeds


def _build_run(spec: dict[str, Any], *, workers: int, seed: int | None) -> SimulatedRun:
    """Return the run of a seed.

    Raises:
        SettingsError: the spec is wrong or cannot be simulated.
    """
    from accordion_workers.simulation.simulated_runs import SimulatedRun
    from accordion_workers.simulation.simulated_spec import build_simulated_spec, explain_refusal

    checked = check_spec(build_simulated_spec(spec, workers=workers, seed=seed), explain_refusal)
    seed = checked.training.seed
    plain = checked.model_dump(mode="json", exclude_unset=True)
    plain["training"] = {**plain.get("training", {}), "seed": seed}
    return SimulatedRun(
        name=checked.name or checked.task.name, spec=plain, workers=checked.workers.max, seed=seed
    )


def _report_replicas(*, workers: int, simulated: int) -> None:
    if simulated != workers:
        typer.echo(
            f"{workers} workers that hold the model together in replicas of {workers // simulated}"
            f" are simulated as {simulated}, with the bytes of a whole replica, of which PowerSGD"
            " sends more in parts",
            err=True,
        )


def _claim_runs(
    wanted: Sequence[SimulatedRun], out: Path | None, locks: ExitStack
) -> list[SeedRun]:
    """Return the runs in their folders, which are locked.

    Raises:
        SettingsError: the folder has another run, is in use, or cannot be used.
    """
    from accordion_client.commands.simulations import SeedRun
    from accordion_service.domain.file_names import name_file
    from accordion_service.errors import SettingsError
    from accordion_workers.simulation.simulated_runs import RunError, claim_runs, lock_run

    folder = out or Path("simulations", name_file(wanted[0].name, ""))
    try:
        for one in wanted:
            locks.enter_context(lock_run(one.place_in(folder)))
        claimed = claim_runs(folder, wanted)
    except RunError as error:
        raise SettingsError(str(error)) from error
    except OSError as error:
        raise SettingsError(
            f"{error.filename or folder} cannot be used ({error.strerror}); give another folder"
            " with --out"
        ) from error
    return [SeedRun(folder=place, run=run) for place, run in claimed.items()]


def _report_unfinished(runs: Sequence[SeedRun]) -> None:
    from accordion_workers.common.plain_text import clean_for_terminal

    failed = [one for one in runs if one.run.status == "FAILED"]
    stopped = [one for one in runs if one.run.status == "STOPPED"]
    for one in failed:
        message = clean_for_terminal(one.run.message)
        typer.echo(f"accordion: seed {one.run.seed} failed: {message}", err=True)
    if stopped:
        names = ", ".join(str(one.run.seed) for one in stopped)
        typer.echo(f"accordion: stopped at seed {names}; the same command goes on", err=True)
    if failed or stopped:
        raise typer.Exit(FAILED)
