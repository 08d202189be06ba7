"""The table of tasks; loads no torch, so that a server can list and check them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from accordion.options import Option

_SLOW = Option(default=0.0, least=0.0, most=60.0, help="least seconds a step takes, so that people can watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task that a spec can name."""

    summary: str
    task: str
    """`module:Class`, loaded in the worker."""
    options: Mapping[str, Option] = field(default_factory=dict)


TASKS: Mapping[str, TaskRow] = {
    "digits-mlp": TaskRow(
        summary="scikit-learn's 1,797 handwritten digits, a perceptron with one hidden layer",
        task="workers.tasks.digits:DigitsMlp",
        options={
            "hidden": Option(default=512, least=1, most=65536, help="units of the hidden layer"),
            "min_step_s": _SLOW,
        },
    ),
    "synthetic": TaskRow(
        summary="random regression of any size, for measuring and for breaking things on purpose",
        task="workers.tasks.synthetic:Synthetic",
        options={
            "samples": Option(default=1024, least=1, most=10_000_000, help="training samples"),
            "width": Option(default=256, least=1, most=65536, help="inputs and outputs of each linear layer"),
            "depth": Option(default=2, least=1, most=1000, help="linear layers"),
            "raise_at_step": Option(default=-1, least=-1, help="raise in this step; -1 never"),
            "nan_at_step": Option(default=-1, least=-1, help="loss is NaN from this step on; -1 never"),
            "min_step_s": _SLOW,
        },
    ),
}

SCRIPT = "script"
"""A whole training script of the user's, in uploaded code."""
SCRIPT_ROW = TaskRow(
    summary="a training script of your own from uploaded code; it calls workers.session",
    task="workers.session:run_script",
    options={
        "file": Option(default="train.py", help="path of the script inside the code"),
        "args": Option(default="", help="its command line, as in a shell"),
    },
)

__all__ = ["SCRIPT", "SCRIPT_ROW", "TASKS", "TaskRow"]
