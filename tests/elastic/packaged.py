"""A task that needs a package which nothing but the job's `pip` provides."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from tests.elastic.watched import WatchedDigits


class PackagedDigits(WatchedDigits):
    """Notes the version and file of `acc_alpha`, once in each process, and uses it in each step."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        import acc_alpha

        super().__init__(options)
        place = f"{acc_alpha.VERSION} {acc_alpha.__file__}"
        (Path(str(options["folder"])) / f"package-{os.getpid()}").write_text(place)

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:
        """Return the loss of the digits, by way of the package."""
        from acc_alpha.identity import identity

        return identity(super().loss(outputs, targets, step=step))
