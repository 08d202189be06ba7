"""What workers/scaling.py and workers/failure.py take from Ray Train's insides: fails when Ray changes it."""

from __future__ import annotations

import inspect
import pickle

import pytest
import ray.exceptions
import ray.train
from ray.train.collective import broadcast_from_rank_zero
from ray.train.constants import RAY_CHDIR_TO_TRIAL_DIR
from ray.train.v2._internal import constants
from ray.train.v2._internal import exceptions as internal
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from workers.errors import TaskRaised
from workers.failure import _SIGNS_OF_DEATH, CONTROLLER, failure_of
from workers.launch import TRAIN_ENVIRONMENT
from workers.scaling import LeanTrainer, errors_by_rank


def callbacks_of(trainer: DataParallelTrainer) -> set[str]:
    return {type(callback).__name__ for callback in trainer._create_default_callbacks()}


def test_the_trainer_leaves_out_exactly_the_callbacks_that_our_jobs_do_not_use() -> None:
    stock, lean = callbacks_of(DataParallelTrainer(print)), callbacks_of(LeanTrainer(print))
    assert (stock - lean, lean - stock) == ({"DatasetsCallback", "PlacementGroupCleanerCallback"}, set())


def test_ray_calls_the_method_that_we_replace() -> None:
    assert "self._create_default_callbacks()" in inspect.getsource(DataParallelTrainer.fit)


def test_our_settings_take_out_the_change_of_directory_and_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = callbacks_of(LeanTrainer(print))
    for name, value in TRAIN_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    taken_out = stock - callbacks_of(LeanTrainer(print))
    assert {"WorkingDirectorySetupCallback", "ControllerMetricsCallback"} <= taken_out


def test_workers_can_agree_on_an_address_before_there_is_a_process_group() -> None:
    assert inspect.signature(broadcast_from_rank_zero).parameters.keys() == {"data"}


def test_a_workers_own_error_is_found_in_what_fit_raises() -> None:
    own = TaskRaised(3, 0, "ValueError: no")
    wrapped = UserExceptionWithTraceback(own, traceback_str="Traceback")
    for failure in (wrapped, own):
        error = pickle.loads(pickle.dumps(ray.train.WorkerGroupError("failed", {1: failure})))
        assert [(rank, str(found)) for rank, found in errors_by_rank(error).items()] == [(1, str(own))]


def test_a_controllers_error_is_found_in_what_fit_raises() -> None:
    cause = internal.WorkerGroupStartupFailedError("no worker came up")
    assert errors_by_rank(ray.train.ControllerError(cause)) == {CONTROLLER: cause}


@pytest.mark.parametrize("name", sorted(_SIGNS_OF_DEATH))
def test_every_name_by_which_we_know_a_lost_process_is_an_error_of_ray(name: str) -> None:
    homes = [module for module in (ray.exceptions, ray.train, internal) if hasattr(module, name)]
    assert homes
    assert issubclass(getattr(homes[0], name), Exception)


def test_a_controller_that_died_is_no_failure_of_the_job() -> None:
    assert failure_of(errors_by_rank(ray.exceptions.ActorDiedError())).cause == "infrastructure"


def test_ray_train_hands_our_settings_on_or_reads_them_where_fit_is_called() -> None:
    where_fit_is_called = {constants.METRICS_ENABLED_ENV_VAR, RAY_CHDIR_TO_TRIAL_DIR}
    assert TRAIN_ENVIRONMENT.keys() - where_fit_is_called <= constants.ENV_VARS_TO_PROPAGATE
