"""Histories of what a command line names: jobs of the service, and folders of simulations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accordion_client.commands.cli_support import connect_client, find_to_read
from accordion_client.commands.compared_history import ComparedEpoch, ComparedHistory, keep_compared
from accordion_client.commands.simulated_jobs import list_simulated

if TYPE_CHECKING:
    from accordion_client import Client

_PAGE = 500
"""Epochs in a request, the most that the service returns at once."""


def read_histories(names: Sequence[str], url: str) -> list[list[ComparedHistory]]:
    """Return the histories of each name that was given: several for a folder of simulations, and
    one for a job of the service, to which no connection is made if there are only folders.

    Raises:
        AmbiguousJob: no job has the name, or several that have not ended.
        SettingsError: a simulated run is damaged.
    """
    simulated = {name: list_simulated(Path(name)) for name in names}
    served = _read_jobs([name for name in names if not simulated[name]], url)
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
