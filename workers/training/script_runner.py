"""Runs a user's script in a worker process; placeholders replace the parts that only it knows."""

from __future__ import annotations

import logging
import runpy
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from accordion.attach_refusal import refuse_attach
from workers.contract import Launch
from workers.error_kinds import is_peer_loss
from workers.error_text import format_with_line
from workers.errors import CodeError, TaskRaised, WorkerError
from workers.training.context import WorkerContext
from workers.training.script_checks import OTHER_ATTACH, explain_second_group
from workers.user_code.install import append_to_path, install_code

if TYPE_CHECKING:
    from workers.training.boundaries import Outcome

logger = logging.getLogger(__name__)


class ScriptExit(SystemExit):
    """Ends the script; `outcome` is the reason, and whether everything is saved."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(0)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class SampleCount:
    """Data of which only the number of samples is known: the script reads them."""

    number: int

    def __len__(self) -> int:
        return self.number

    def batch(self, indices: Tensor) -> NoReturn:
        """Raise: only the script can read its samples."""
        raise NotImplementedError(f"{len(indices)} samples are the script's own")


class ScriptTask:
    """Stands in for the task of a script, which has its own model, loss and data."""

    def model(self) -> nn.Module:
        """Not available: the script has the model."""
        raise NotImplementedError

    def train_data(self) -> SampleCount:
        """Not available: the script has the data."""
        raise NotImplementedError

    def eval_data(self) -> SampleCount:
        """Not available: the script has the data."""
        raise NotImplementedError

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:
        """Not available: the script has the loss."""
        raise NotImplementedError

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Not available: the script has the metrics."""
        raise NotImplementedError


def run_script(context: WorkerContext) -> Outcome:
    """Run the job's script in this process, from its newest checkpoint to its end or until a
    requested stop is saved.

    Raises:
        TaskRaised: the script raised, or cannot be found.
        LossNotFinite: too many steps were skipped in a row.
        OSError: the storage cannot be written.
        RuntimeError: a collective broke, because a peer is gone.
    """
    from workers.training.script_session import session

    torch.set_num_threads(context.launch.spec.workers.num_threads)
    session.bind(context)
    try:
        with _attribute_errors():
            return _run_to_outcome(context)
    finally:
        session.reset()


def _run_to_outcome(context: WorkerContext) -> Outcome:
    from workers.training.script_session import session

    try:
        _run_to_end(context)
    except BaseException as error:
        if session.leaving is None:
            raise
        if not isinstance(error, SystemExit):
            context.link.log(
                f"warning: the script raised {format_with_line(error)} while it ended because its"
                " job stops or continues with other workers; this is ignored"
            )
    return session.leaving or ("ended early" if session.state.ends_early else "completed")


def _run_to_end(context: WorkerContext) -> None:
    """Run the script, and save what it has not saved.

    Raises:
        CodeError: the script cannot be found, or it ended with an exit code other than 0.
        Exception: what the script raised, or the session's own failure, which it caught.
    """
    from workers.training.script_session import session

    folder, file, arguments = _locate_script(context.launch)
    try:
        # The script of an earlier group may have changed the directory of this process.
        with (
            chdir(folder),
            refuse_attach(OTHER_ATTACH),
            _warn_before_attach(context),
            _set_command_line([str(file), *arguments]),
        ):
            runpy.run_path(str(file), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0) and session.leaving is None:
            error = CodeError(
                f"the script ended with sys.exit({end.code!r}); give 0, or raise what went wrong"
            )
            # It names the script's line.
            raise error.with_traceback(end.__traceback__) from end
    if session.failure is not None and session.leaving is None:
        raise session.failure
    if session.step_and_epoch == (None, None):
        raise CodeError(
            f"the script {context.launch.spec.task.options['file']} ended without"
            " session.attach(model, optimizer); workers/README.md shows how"
        )
    session.close()


@contextmanager
def _warn_before_attach(context: WorkerContext) -> Iterator[None]:
    """Log the first optimizer's step before `session.attach`: a script that never calls that fails
    at its end.
    """
    from workers.training.script_session import session

    steps = count()

    def warn(*_: object) -> None:
        # Only the first step counts; a hook removed inside a step would break torch's loop over all
        # hooks, such as the script's own.
        if next(steps) == 0 and session.step_and_epoch == (None, None):
            context.link.log(
                "warning: an optimizer's step was taken before session.attach(model, optimizer); a"
                " job saves and records only what is trained after it, and fails at the end of a"
                " script that does not call it"
            )

    followed = register_optimizer_step_pre_hook(warn)
    try:
        yield
    finally:
        followed.remove()


def _locate_script(launch: Launch) -> tuple[Path, Path, list[str]]:
    """Return the folder of the uploaded code, the script's file, with its neighbours importable,
    and its command line.
    """
    folder = install_code(launch)
    options = launch.spec.task.options
    if folder is None or not (folder / str(options["file"])).is_file():
        found = (
            sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py"))[:5]
            if folder
            else []
        )
        raise CodeError(
            f"there is no {options['file']} in the uploaded code; it holds"
            f" {', '.join(found) or 'nothing'}"
        )
    file = folder / str(options["file"])
    neighbours = [
        str(path.relative_to(file.parent)) for path in file.parent.rglob("*") if path.is_file()
    ]
    append_to_path(file.parent, neighbours)
    return folder, file, shlex.split(str(options["args"]))


@contextmanager
def _set_command_line(arguments: list[str]) -> Iterator[None]:
    """Set `sys.argv` for the script."""
    before, sys.argv = sys.argv, arguments
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _attribute_errors() -> Iterator[None]:
    """Turn what the script raised into `TaskRaised`; our own errors, and those of a lost peer, stay
    as they are.
    """
    from workers.training.script_session import session

    try:
        yield
    except CodeError as error:
        raise _task_raised(error) from error
    except WorkerError:
        raise
    except KeyboardInterrupt as error:
        raise _task_raised(error) from error
    except Exception as error:
        if error is session.failure or is_peer_loss(error):
            raise
        explained = explain_second_group(error) or error
        raise _task_raised(explained.with_traceback(error.__traceback__)) from error


def _task_raised(error: BaseException) -> TaskRaised:
    from workers.training.script_session import session

    logger.exception("the script raised")
    step, epoch = session.step_and_epoch
    return TaskRaised(step, epoch, format_with_line(error))


__all__ = [
    "SampleCount",
    "ScriptExit",
    "ScriptTask",
    "run_script",
]
