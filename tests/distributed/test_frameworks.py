"""The examples with Accelerate, Transformers and Lightning, each in its own pair of gloo processes
under torchrun.
"""

from __future__ import annotations

import pytest

from tests.distributed.framework_programs import run_framework

TIMEOUT_S = 600
"""Ends runs that hang: one framework's take 20 to 90 s on two busy cores."""

pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)


@pytest.fixture(scope="module", params=["accelerate", "transformers", "lightning"])
def runs(request, tmp_path_factory):
    """What the runs of one framework gave; accumulation over two batches and clipping are on."""
    folder = tmp_path_factory.mktemp(request.param)
    return run_framework("framework_runs.py", request.param, folder, timeout_s=TIMEOUT_S)


def test_a_framework_trains_equal_replicas_with_a_fraction_of_the_bytes(runs):
    assert runs["apart"] == [0, 0, 0]
    whole = runs["whole"]
    assert whole["steps"] == 6 * 22
    assert (
        whole["dense"] == whole["steps"] * 38_410 * 4
    )  # every parameter, once a step: not once a batch
    assert whole["sent"] < whole["dense"] / 4


def test_a_framework_learns_as_much_as_without_compression(runs):
    accuracy = runs["accuracy"]
    # Of 389 images; one standard error at 90 % is 1.5 points.
    assert accuracy["compressed"] > accuracy["plain"] - 0.03
    assert accuracy["plain"] > 0.8


def test_a_resumed_run_of_a_framework_equals_an_uninterrupted_one(runs):
    assert runs["equal"] == [1, 1]  # parameters and residuals, bit for bit, on both ranks
    assert runs["resumed"] == runs["whole"]


def test_a_framework_resumes_in_one_process_with_the_mean_residual(runs):
    alone = runs["alone"]
    assert alone["owed"] == 0
    assert alone["steps"] > runs["whole"]["steps"]
    assert alone["accuracy"] > runs["accuracy"]["compressed"] - 0.03
