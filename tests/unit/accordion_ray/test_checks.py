"""Models and settings that `attach` refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from accordion.config import BatchConfig, Config
from accordion_ray.checks import check_config, check_model
from accordion_ray.errors import AttachError


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_bare_model_of_several_workers_is_told_of_prepare_model() -> None:
    with pytest.raises(
        AttachError, match=r"got a Linear on 2 workers; call model = .*prepare_model\(model\)"
    ):
        check_model(nn.Linear(2, 2), world_size=2)


def test_a_bare_model_of_one_worker_is_taken() -> None:
    check_model(nn.Linear(2, 2), world_size=1)


def test_a_prepared_model_is_taken(group: None) -> None:
    check_model(DistributedDataParallel(nn.Linear(2, 2)), world_size=2)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_model_of_fsdp1_is_refused(group: None, world_size: int) -> None:
    sharded = FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu"))
    with pytest.raises(AttachError, match=r"FSDP1 shards.*without parallel_strategy="):
        check_model(sharded, world_size=world_size, has_replicas=True)


def test_a_model_of_fsdp2_needs_the_group_of_its_replicas(group: None) -> None:
    sharded = fully_shard(nn.Linear(2, 2))
    with pytest.raises(AttachError, match=r"FSDP2 shards.*replicate_group=mesh"):
        check_model(sharded, world_size=2)
    check_model(sharded, world_size=2, has_replicas=True)


def test_batch_levels_are_refused() -> None:
    with pytest.raises(AttachError, match="between 64 and 512 samples"):
        check_config(Config(batch=BatchConfig(low=64, high=512)), None)


def test_an_epoch_without_steps_is_refused() -> None:
    with pytest.raises(AttachError, match="steps_per_epoch is 0"):
        check_config(Config(), 0)


def test_a_negative_batch_is_refused() -> None:
    with pytest.raises(AttachError, match="global_batch is -2; give the samples a step"):
        check_config(Config(), None, global_batch=-2)
