"""Laws of one level of compression, on W pretended workers in lockstep; each raises AssertionError
where it does not hold.
"""

from __future__ import annotations

import torch

from accordion.base.messages import Level
from accordion.compressors import ladder_of
from tests.unit.accordion.lockstep import Cluster, closeness, draw_gradients, mean_of

Shape = tuple[int, ...]


def workers_hold_the_same_update(level: Level, *, shape: Shape, world_size: int, seed: int) -> None:
    cluster = Cluster({"w": shape, "b": (3,)}, world_size)
    cluster.switch(level)
    updates = cluster.step(draw_gradients({"w": shape, "b": (3,)}, world_size, seed))
    for own in updates[1:]:
        assert torch.equal(own["w"], updates[0]["w"])
        assert torch.equal(own["b"], updates[0]["b"])


def change_to_none_sends_the_whole_debt_once(
    level: Level, *, shape: Shape, world_size: int, seed: int
) -> None:
    cluster = Cluster({"w": shape}, world_size)
    cluster.switch(level)
    cluster.step(draw_gradients({"w": shape}, world_size, seed))
    cluster.switch(ladder_of("none")[0])
    gradients = draw_gradients({"w": shape}, world_size, seed + 1)
    owed = cluster.mean_residual("w", gradients[0]["w"])
    update = cluster.step(gradients)[0]["w"]
    due = mean_of(gradients, "w") + owed
    torch.testing.assert_close(update, due, rtol=0, atol=closeness(due, owed))
    assert all(engine.feedback.get("w") is None for engine in cluster.engines)


def zero_layer_stays_zero_and_does_not_stop_later_gradients(
    level: Level, *, shape: Shape, world_size: int, seed: int
) -> None:
    del seed
    cluster = Cluster({"w": shape}, world_size)
    cluster.switch(level)
    for _ in range(3):
        update = cluster.step([{"w": torch.zeros(shape)} for _ in range(world_size)])[0]["w"]
        assert torch.equal(update, torch.zeros(shape))
    ones = [{"w": torch.ones(shape)} for _ in range(world_size)]
    assert cluster.step(ones)[0]["w"].abs().max() > 0.1


def step_that_is_rolled_back_leaves_no_trace(
    level: Level, *, shape: Shape, world_size: int, seed: int
) -> None:
    def train(*, with_bad_step: bool) -> list[torch.Tensor]:
        cluster = Cluster({"w": shape}, world_size)
        cluster.switch(level)
        cluster.step(draw_gradients({"w": shape}, world_size, seed))
        if with_bad_step:
            cluster.exchange(
                [{"w": torch.full(shape, 7.0)} for _ in range(world_size)], is_skipped=True
            )
            for engine in cluster.engines:
                engine.rollback_step()
        update = cluster.step(draw_gradients({"w": shape}, world_size, seed + 1))[0]["w"]
        return [update, *(engine.sums.summary(torch.device("cpu")) for engine in cluster.engines)]

    for disturbed, undisturbed in zip(
        train(with_bad_step=True), train(with_bad_step=False), strict=True
    ):
        assert torch.equal(disturbed, undisturbed)


def gradients_in_64_bits_stay_in_64_bits(
    level: Level, *, shape: Shape, world_size: int, seed: int
) -> None:
    cluster = Cluster({"w": shape}, world_size)
    cluster.switch(level)
    drawn = draw_gradients({"w": shape}, world_size, seed)
    update = cluster.step([{"w": own["w"].double()} for own in drawn])[0]["w"]
    assert update.dtype == torch.float64


LAWS = (
    workers_hold_the_same_update,
    change_to_none_sends_the_whole_debt_once,
    zero_layer_stays_zero_and_does_not_stop_later_gradients,
    step_that_is_rolled_back_leaves_no_trace,
    gradients_in_64_bits_stay_in_64_bits,
)
"""Laws of every level."""


def sent_and_owed_add_up(level: Level, *, shape: Shape, world_size: int, seed: int) -> None:
    """A level with error feedback sends or owes the gradient and the old residual."""
    cluster = Cluster({"w": shape}, world_size)
    cluster.switch(level)
    cluster.step(draw_gradients({"w": shape}, world_size, seed))
    gradients = draw_gradients({"w": shape}, world_size, seed + 1)
    owed = cluster.mean_residual("w", gradients[0]["w"])
    update = cluster.step(gradients)[0]["w"]
    left = cluster.mean_residual("w", update)
    due = mean_of(gradients, "w") + owed
    torch.testing.assert_close(update + left, due, rtol=0, atol=closeness(due, update, left))
