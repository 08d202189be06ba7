"""Views of the gradients in a bucket, and the layouts that are refused."""

from __future__ import annotations

import pytest
import torch

from accordion.base.errors import HookError
from accordion.hook.ddp_buckets import gradients_of


def test_a_complex_gradient_is_the_real_view_of_its_whole_place_in_the_bucket():
    buffer = torch.arange(20.0)  # as DDP cuts it: offsets and sizes count complex values
    parts = [buffer[:6].view(2, 3), buffer[6:10]]
    parameters = [torch.zeros(2, 3, dtype=torch.complex64), torch.zeros(4, dtype=torch.complex64)]
    matrix, vector = gradients_of(buffer, parts, parameters)
    assert torch.equal(matrix, torch.arange(12.0).view(2, 6))
    assert torch.equal(vector, torch.arange(12.0, 20.0))
    assert matrix.data_ptr() == buffer.data_ptr()


@pytest.mark.parametrize("parameter", [torch.zeros(4, dtype=torch.float64), torch.zeros(5)])
def test_a_gradient_of_another_dtype_or_size_than_its_parameter_is_refused(parameter):
    with pytest.raises(
        HookError, match=f"for a parameter of {parameter.numel()} values in {parameter.dtype}"
    ):
        gradients_of(torch.zeros(4), [torch.zeros(4)], [parameter])


def test_a_bucket_that_its_gradients_do_not_fill_is_refused():
    with pytest.raises(HookError, match="hold 4 values, but its buffer holds 8"):
        gradients_of(torch.zeros(8), [torch.zeros(4)], [torch.zeros(4)])
