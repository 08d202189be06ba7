"""Runs a user's script in a worker process; placeholders replace the parts that only it knows."""

from __future__ import annotations

import logging
import runpy
import shlex
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from accordion.base.errors import HookError
from accordion.hook.attach_refusal import refuse_attach
from accordion_workers.common.error_kinds import is_peer_loss
from accordion_workers.common.error_text import format_with_line
from accordion_workers.common.errors import CodeError, ScriptMistaken, TaskRaised, WorkerError
from accordion_workers.records.contract import Launch
from accordion_workers.training.context import WorkerContext
from accordion_workers.training.script_checks import (
    OF_FRAMEWORKS,
    OTHER_ATTACH,
    explain_second_group,
)
from accordion_workers.training.script_session import session
from accordion_workers.user_code.install import append_to_path, install_code
from accordion_workers.user_code.moved_imports import explain_moved_import

if TYPE_CHECKING:
    from accordion_workers.training.boundaries import Outcome

logger = logging.getLogger(__name__)


class ScriptEndedError(CodeError):
    """The script ended with an exit code other than 0, for a reason of its own."""


def run_script(context: WorkerContext) -> Outcome:
    """Run the job's script in this process, from its newest checkpoint to its end or until a
    requested stop is saved.

    Raises:
        TaskRaised: the script raised, or cannot be found.
        LossNotFinite: too many steps were skipped in a row.
        OSError: the storage cannot be written.
        RuntimeError: a collective broke, because a peer is gone.
    """
    torch.set_num_threads(context.launch.spec.workers.num_threads)
    _forget_earlier_group()
    session.bind(context)
    try:
        with _attribute_errors():
            return _run_to_outcome(context)
    finally:
        session.reset()


def _forget_earlier_group() -> None:
    """Let Accelerate look again which group this process is in: it remembers the one of the script
    that ran before.
    """
    remembered = sys.modules.get("accelerate.state")
    for name in ("AcceleratorState", "GradientState", "PartialState"):
        if remembered is not None:
            getattr(remembered, name)._reset_state()  # what Accelerate's tests call


def _run_to_outcome(context: WorkerContext) -> Outcome:
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
            error = ScriptEndedError(
                f"the script ended with sys.exit({end.code!r}); give 0, or raise what went wrong"
            )
            # It names the script's line.
            raise error.with_traceback(end.__traceback__) from end
    if session.failure is not None and session.leaving is None:
        raise session.failure
    if session.step_and_epoch == (None, None):
        raise CodeError(
            f"the script {context.launch.spec.task.options['file']} ended without"
            f" session.attach(model, optimizer){OF_FRAMEWORKS}"
        )
    session.close()


@contextmanager
def _warn_before_attach(context: WorkerContext) -> Iterator[None]:
    """Log the first optimizer's step before `session.attach`: a script that never calls that fails
    at its end.
    """
    steps = count()

    def warn(*_: object) -> None:
        # Only the first step counts; a hook removed inside a step would break torch's loop over all
        # hooks, such as the script's own.
        if next(steps) == 0 and session.step_and_epoch == (None, None):
            context.link.log(
                "warning: an optimizer's step was taken before session.attach(model, optimizer); a"
                " job saves and records only what is trained after it, and fails at the end of a"
                f" script that does not call it{OF_FRAMEWORKS}"
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
        explained = explain_second_group(error) or explain_moved_import(error) or error
        raise _task_raised(explained.with_traceback(error.__traceback__)) from error


def _task_raised(error: BaseException) -> TaskRaised:
    logger.exception("the script raised")
    step, epoch = session.step_and_epoch
    # Before `session.attach` the code or the data may be missing, and come back.
    is_mistake = isinstance(error, CodeError | HookError)
    is_refused = is_mistake and not isinstance(error, ScriptEndedError) and step is not None
    kind = ScriptMistaken if is_refused else TaskRaised
    return kind(step, epoch, format_with_line(error))
