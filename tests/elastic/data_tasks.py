"""A task that notes where it finds the job's data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accordion_workers.tasks.digits import DigitsMlp


class NotesData(DigitsMlp):
    """Options: `folder` for a file of each process, with the path of the data and what is there."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__({"hidden": 8, "min_step_s": 0.0})
        place = Path(os.environ["ACCORDION_DATA_WORDS"])
        note = f"{place}\n{(place / 'words.txt').read_text()}"
        (Path(str(options["folder"])) / f"{os.getpid()}.note").write_text(note)
