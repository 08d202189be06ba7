"""Private names of Ray that ray_nodes.py, actor_client.py and error_kinds.py use: fails when Ray
changes them.
"""

from __future__ import annotations

import inspect

import pytest
import ray.exceptions
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from ray._common.constants import HEAD_NODE_RESOURCE_NAME
from ray._common.ray_option_utils import validate_actor_options
from ray._private.label_utils import validate_label_selector
from ray._private.state import GlobalState, available_resources_per_node

from accordion_workers.common.error_kinds import _SIGNS_OF_DEATH
from accordion_workers.hub import actor_client
from accordion_workers.spec.workers import WorkersSpec

ANY_LABEL = st.text(alphabet="aZ09-._/!(), \n", max_size=70)
ANY_VALUE = st.one_of(ANY_LABEL, ANY_LABEL.map("in({})".format), ANY_LABEL.map("!in({})".format))


@given(st.one_of(ANY_LABEL, ANY_LABEL.map(lambda text: f"zone.example/{text}")), ANY_VALUE)
@example("-x/y", "v")
@example(f"{'a' * 64}/y", "v")
@example("ray.io/accelerator-type", "H100")
@example("ray.io/accelerator-type", "!H100")
@example("ray.io/accelerator-type", "in(H100, A100,L4)")
@example("ray.io/accelerator-type", "!in(H100,A100)")
def test_ray_takes_every_label_that_a_spec_may_have(name: str, value: str) -> None:
    try:
        spec = WorkersSpec(node_labels={name: value})
    except ValidationError:
        return
    assert validate_label_selector(spec.ray_options()["label_selector"]) is None


@given(st.floats(min_value=0, max_value=1e7))
@example(0.00005)
@example(0.12345)
@example(2.5)
def test_ray_takes_every_amount_that_a_spec_may_have(amount: float) -> None:
    try:
        spec = WorkersSpec(resources={"fpga": amount})
    except ValidationError:
        return
    validate_actor_options(spec.ray_options(), in_options=True)


@pytest.mark.parametrize("name", sorted(_SIGNS_OF_DEATH))
def test_the_errors_by_which_we_know_a_dead_process_are_rays(name: str) -> None:
    assert issubclass(getattr(ray.exceptions, name), ray.exceptions.RayError)


def test_the_nodes_that_are_being_drained_can_be_asked_for() -> None:
    assert "hex ids of nodes that are being drained" in inspect.getdoc(
        GlobalState.get_draining_nodes
    )


def test_the_heads_node_is_known_by_a_resource() -> None:
    assert HEAD_NODE_RESOURCE_NAME == actor_client.HEAD


def test_the_free_resources_of_each_node_can_be_asked_for() -> None:
    assert "mapping node hex id to available resources" in inspect.getdoc(
        available_resources_per_node
    )
