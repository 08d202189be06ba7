"""Choice of the source of a session's gradients, by what was attached to."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from accordion.compress.compression_engine import Engine
from accordion.compress.exchange import GroupNetwork
from accordion.compress.executors import (
    Executor,
    InlineExecutor,
    StreamExecutor,
    ThreadExecutor,
    backend_name,
    create_exchange_group,
    register_exit_delay,
)
from accordion.compress.step_signals import Signal
from accordion.config import BucketsPerExchange
from accordion.hook.ddp_source import DdpSource
from accordion.hook.exchange_scheduler import ExchangeScheduler
from accordion.hook.gradient_source import GradientSource
from accordion.hook.module_checks import device_of
from accordion.hook.simulated_module import SimulatedDataParallel
from accordion.hook.simulated_source import SimulatedSource
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
    if isinstance(module, SimulatedDataParallel):
        exchanges = ExchangeScheduler(
            engine,
            module.network,
            InlineExecutor(),
            raised=raised,
            # As processes begin, before they have measured their link.
            buckets_per_exchange=1 if buckets_per_exchange == "auto" else buckets_per_exchange,
        )
        return SimulatedSource(module, engine, exchanges, loss_scale=steps.read_scale)
    if not isinstance(module, DistributedDataParallel):
        return UnwrappedSource(
            module,
            engine,
            raised,
            loss_scale=steps.read_scale,
            unscale=steps.unscale_gradients,
        )

    def create_exchanges() -> ExchangeScheduler:
        register_exit_delay()
        network, executor = _connect(module, overlap=overlap)
        return ExchangeScheduler(
            engine, network, executor, raised=raised, buckets_per_exchange=buckets_per_exchange
        )

    return DdpSource(
        module,
        engine,
        create_exchanges=create_exchanges,
        loss_scale=steps.read_scale,
        step_call=steps.step_call,
        pass_skipped_step=pass_skipped_step,
    )


def _connect(module: DistributedDataParallel, *, overlap: bool) -> tuple[GroupNetwork, Executor]:
    """Return the network of a module's exchanges, and what runs them; exchanges in parallel with
    the backward pass on CPUs get a process group of their own.
    """
    group, device = module.process_group, device_of(module)
    if not overlap:
        return GroupNetwork(group, device), InlineExecutor()
    if device.type == "cuda" and backend_name(group, device) == "nccl":
        return GroupNetwork(group, device), StreamExecutor(device)
    return GroupNetwork(create_exchange_group(group), device), ThreadExecutor(device)
