"""Histories of what a command line names: jobs of the service, and folders of simulations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accordion_client.commands.cli_support import connect_client, find_to_read
from accordion_client.commands.compared_history import ComparedEpoch, ComparedHistory, keep_compared
from accordion_client.commands.simulated_jobs import list_simulated
from accordion_service.errors import SettingsError

if TYPE_CHECKING:
    from accordion_client import Client

_PAGE = 500
"""Epochs in a request, the most that the service returns at once."""


def read_histories(names: Sequence[str], url: str) -> list[list[ComparedHistory]]:
    """Return the histories of each name that was given: several for a folder of simulations, and
    one for a job of the service, to which no connection is made if there are only folders.

    Raises:
        AmbiguousJob: no job has the name, or several that have not ended.
        SettingsError: a simulated run is damaged, or a folder has none.
    """
    from accordion_client import ClientError

    simulated = {name: list_simulated(Path(name)) for name in names}
    try:
        served = _read_jobs([name for name in names if not simulated[name]], url)
    except ClientError as error:
        empty = [name for name in names if not simulated[name] and Path(name).is_dir()]
        if not empty:
            raise
        raise SettingsError(
            f"{empty[0]} is a folder without simulated runs; give the --out of `accordion simulate`"
            f" (taken for a job: {error})"
        ) from error
    return [simulated[name] or [served[name]] for name in names]


def _read_jobs(names: Sequence[str], url: str) -> dict[str, ComparedHistory]:
    if not names:
        return {}
    with connect_client(url) as client:
        found = {name: find_to_read(client, name) for name in names}
        return {
            name: ComparedHistory(job=job, epochs=_read_epochs(client, job.id))
            for name, job in found.items()
        }


def _read_epochs(client: Client, job_id: str) -> list[ComparedEpoch]:
    page = client.epochs(job_id, limit=_PAGE)
    epochs = [keep_compared(row) for row in page.items]
    while page.next_cursor is not None:
        page = client.epochs(job_id, limit=_PAGE, cursor=page.next_cursor)
        epochs += [keep_compared(row) for row in page.items]
    return epochs
