"""The table of tasks; loads no torch, so that a server can list and check them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from accordion.options import Option

_SLOW = Option(
    default=0.0,
    minimum=0.0,
    maximum=60.0,
    help="least seconds a step takes, so that people can watch",
)


_SAMPLES = {
    "samples": Option(default=0, minimum=0, help="samples to train on; 0 for all"),
    "eval_samples": Option(default=0, minimum=0, help="samples to evaluate on; 0 for all"),
}
_TEXT = {
    "data": Option(
        default="", required=True, help="path of a text, or of a folder with texts, on the workers"
    ),
    "tokens": Option(default="words", choices=("chars", "words"), help="what a token is"),
    "vocabulary": Option(
        default=50_000,
        minimum=2,
        maximum=1_000_000,
        help="most tokens that are told apart, the most frequent ones",
    ),
    **_SAMPLES,
}


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
            "hidden": Option(
                default=512, minimum=1, maximum=65536, help="units of the hidden layer"
            ),
            "min_step_s": _SLOW,
        },
    ),
    "cifar-resnet18": TaskRow(
        summary="ResNet-18 on CIFAR-10, or on any labelled pictures of 32 x 32 pixels",
        task="workers.tasks.cifar:CifarResnet18",
        options={
            "data": Option(
                default="",
                required=True,
                help=(
                    "path on the workers: CIFAR-10's binary or python archive, or a folder, zip or"
                    " tar of PNGs with a folder for each class"
                ),
            ),
            "augment": Option(default=True, help="move and mirror pictures at random"),
            "channels": Option(
                default=64,
                minimum=1,
                maximum=1024,
                help="of the first stage; later ones double them",
            ),
            **_SAMPLES,
        },
    ),
    "lm-lstm": TaskRow(
        summary="a language model over characters or words: an LSTM",
        task="workers.tasks.language:LmLstm",
        options={
            **_TEXT,
            "sequence": Option(default=30, minimum=1, maximum=100_000, help="tokens of a sample"),
            "width": Option(
                default=650, minimum=1, maximum=65536, help="of the embedding and of each layer"
            ),
            "layers": Option(default=3, minimum=1, maximum=1000, help="one upon the other"),
            "dropout": Option(
                default=0.4,
                minimum=0.0,
                maximum=0.99,
                help="part of the units left out in training",
            ),
            "tied": Option(default=True, help="the output layer has the embedding's weights"),
        },
    ),
    "lm-transformer": TaskRow(
        summary="a language model over characters or words: a transformer",
        task="workers.tasks.language:LmTransformer",
        options={
            **_TEXT,
            "sequence": Option(
                default=128,
                minimum=1,
                maximum=100_000,
                help="tokens of a sample, and of the context",
            ),
            "width": Option(
                default=256, minimum=1, maximum=65536, help="of the embedding and of each layer"
            ),
            "layers": Option(default=4, minimum=1, maximum=1000, help="one upon the other"),
            "heads": Option(
                default=4, minimum=1, maximum=1024, help="of each layer; they share the width"
            ),
            "dropout": Option(
                default=0.1,
                minimum=0.0,
                maximum=0.99,
                help="part of the units left out in training",
            ),
            "tied": Option(default=True, help="the output layer has the embedding's weights"),
        },
    ),
    "synthetic": TaskRow(
        summary="random regression of any size, for measuring and for breaking things on purpose",
        task="workers.tasks.synthetic:Synthetic",
        options={
            "samples": Option(default=1024, minimum=1, maximum=10_000_000, help="training samples"),
            "width": Option(
                default=256,
                minimum=1,
                maximum=65536,
                help="inputs and outputs of each linear layer",
            ),
            "depth": Option(default=2, minimum=1, maximum=1000, help="linear layers"),
            "raise_at_step": Option(default=-1, minimum=-1, help="raise in this step; -1 never"),
            "nan_at_step": Option(
                default=-1, minimum=-1, help="loss is NaN from this step on; -1 never"
            ),
            "min_step_s": _SLOW,
        },
    ),
}

SCRIPT = "script"
"""A whole training script of the user's, in uploaded code."""
SCRIPT_ROW = TaskRow(
    summary="a training script of your own from uploaded code; it calls workers.session",
    task="workers.training.script_runner:run_script",
    options={
        "file": Option(default="train.py", help="path of the script inside the code"),
        "args": Option(default="", help="its command line, as in a shell"),
    },
)

GUEST = "guest"
"""The task of a guest run, which people start themselves with Ray Train; nobody can submit it."""

__all__ = ["GUEST", "SCRIPT", "SCRIPT_ROW", "TASKS", "TaskRow"]
