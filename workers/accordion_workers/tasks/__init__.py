"""The table of tasks; loads no torch, so that a server can list and check them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from accordion.base.options import Option

_SLOW = Option(
    default=0.0,
    minimum=0.0,
    maximum=60.0,
    help="shortest time of a step in seconds, for watching",
)


_SAMPLES = {
    "samples": Option(default=0, minimum=0, help="samples to train on; 0 for all"),
    "eval_samples": Option(default=0, minimum=0, help="samples to evaluate on; 0 for all"),
}
_TEXT = {
    "data": Option(
        default="", required=True, help="path on the workers of a text or of a folder with texts"
    ),
    "tokens": Option(default="words", choices=("chars", "words"), help="what a token is"),
    "vocabulary": Option(
        default=50_000,
        minimum=2,
        maximum=1_000_000,
        help="size of the vocabulary; the most frequent tokens are kept",
    ),
    **_SAMPLES,
}


def _language_layers(*, width: int, layers: int, dropout: float) -> Mapping[str, Option]:
    """Return the options of a language model's layers with these defaults."""
    return {
        "width": Option(
            default=width,
            minimum=1,
            maximum=65536,
            help="width of the embedding and of each layer",
        ),
        "layers": Option(default=layers, minimum=1, maximum=1000, help="number of layers"),
        "dropout": Option(
            default=dropout,
            minimum=0.0,
            maximum=0.99,
            help="fraction of the units dropped in training",
        ),
        "tied": Option(
            default=True, help="whether the output layer shares the embedding's weights"
        ),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task that a spec can name."""

    summary: str
    task: str
    """`module:Class`, loaded in the worker."""
    options: Mapping[str, Option] = field(default_factory=dict)
    metrics: tuple[str, ...] = ("loss",)
    """Names of the metrics of its evaluation; empty if only its own code knows them."""


TASKS: Mapping[str, TaskRow] = {
    "digits-mlp": TaskRow(
        summary="a perceptron with one hidden layer on scikit-learn's 1,797 handwritten digits",
        task="accordion_workers.tasks.digits:DigitsMlp",
        metrics=("loss", "accuracy"),
        options={
            "hidden": Option(
                default=512, minimum=1, maximum=65536, help="units of the hidden layer"
            ),
            "min_step_s": _SLOW,
        },
    ),
    "cifar-resnet18": TaskRow(
        summary="ResNet-18 on CIFAR-10, or on any labelled 32 x 32 images",
        task="accordion_workers.tasks.cifar:CifarResnet18",
        metrics=("loss", "accuracy"),
        options={
            "data": Option(
                default="",
                required=True,
                help=(
                    "path on the workers: CIFAR-10's binary or python archive, or a folder, zip or"
                    " tar of PNGs with a folder for each class"
                ),
            ),
            "augment": Option(default=True, help="crop and flip images at random"),
            "channels": Option(
                default=64,
                minimum=1,
                maximum=1024,
                help="channels of the first stage; each later stage doubles them",
            ),
            **_SAMPLES,
        },
    ),
    "lm-lstm": TaskRow(
        summary="an LSTM language model over characters or words",
        task="accordion_workers.tasks.language:LmLstm",
        metrics=("loss", "perplexity"),
        options={
            **_TEXT,
            "sequence": Option(default=30, minimum=1, maximum=100_000, help="tokens per sample"),
            **_language_layers(width=650, layers=3, dropout=0.4),
        },
    ),
    "lm-transformer": TaskRow(
        summary="a transformer language model over characters or words",
        task="accordion_workers.tasks.language:LmTransformer",
        metrics=("loss", "perplexity"),
        options={
            **_TEXT,
            "sequence": Option(
                default=128,
                minimum=1,
                maximum=100_000,
                help="tokens per sample, and length of the context",
            ),
            **_language_layers(width=256, layers=4, dropout=0.1),
            "heads": Option(
                default=4,
                minimum=1,
                maximum=1024,
                help="attention heads of each layer; they divide the width",
            ),
        },
    ),
    "synthetic": TaskRow(
        summary="random regression of any size, for measurements and failure tests",
        task="accordion_workers.tasks.synthetic:Synthetic",
        options={
            "samples": Option(default=1024, minimum=1, maximum=10_000_000, help="training samples"),
            "width": Option(
                default=256,
                minimum=1,
                maximum=65536,
                help="inputs and outputs of each linear layer",
            ),
            "depth": Option(default=2, minimum=1, maximum=1000, help="linear layers"),
            "raise_at_step": Option(
                default=-1, minimum=-1, help="step in which the task raises; -1 for never"
            ),
            "nan_at_step": Option(
                default=-1, minimum=-1, help="step from which the loss is NaN; -1 for never"
            ),
            "min_step_s": _SLOW,
        },
    ),
}

SCRIPT = "script"
"""Name of the task that runs a whole training script from uploaded code."""
SCRIPT_ROW = TaskRow(
    summary="your own training script from uploaded code; it calls accordion_workers' session",
    task="accordion_workers.training.script_runner:run_script",
    metrics=(),
    options={
        "file": Option(default="train.py", help="path of the script inside the uploaded code"),
        "args": Option(default="", help="command line of the script, in shell syntax"),
    },
)

GUEST = "guest"
"""Task of a guest run, which users start themselves with Ray Train; it cannot be submitted."""
STANDALONE = "session:Script"
"""Placeholder for the task of a script outside of a job."""

__all__ = ["GUEST", "SCRIPT", "SCRIPT_ROW", "STANDALONE", "TASKS", "TaskRow"]
