"""Choice of the source of a session's gradients, by what was attached to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from accordion.compress.compression_engine import Engine
from accordion.compress.step_signals import Signal
from accordion.config import BucketsPerExchange
from accordion.hook.ddp_source import DdpSource
from accordion.hook.exchange_scheduler import ExchangeScheduler
from accordion.hook.gradient_source import GradientSource
from accordion.hook.module_checks import device_of
from accordion.hook.unwrapped_source import UnwrappedSource
from accordion.session.optimizer_steps import OptimizerSteps


def create_source(
    module: nn.Module,
    engine: Engine,
    steps: OptimizerSteps,
    *,
    raised: Callable[[], frozenset[Signal]],
    pass_skipped_step: Callable[[Tensor], bool],
    overlap: bool,
    buckets_per_exchange: BucketsPerExchange,
) -> GradientSource:
    """Return the source of a module's gradients, with a scheduler of their exchanges if there are
    peers.

    Raises:
        HookError: the module has a session already.
    """
    if not isinstance(module, DistributedDataParallel):
        return UnwrappedSource(
            module,
            engine,
            raised,
            loss_scale=steps.read_scale,
            unscale=steps.unscale_gradients,
        )
    create_exchanges = partial(
        ExchangeScheduler,
        engine,
        module.process_group,
        device_of(module),
        raised=raised,
        overlap=overlap,
        buckets_per_exchange=buckets_per_exchange,
    )
    return DdpSource(
        module,
        engine,
        create_exchanges=create_exchanges,
        loss_scale=steps.read_scale,
        step_call=steps.step_call,
        pass_skipped_step=pass_skipped_step,
    )
