"""One dispatcher hook for DDP: buckets in, averaged gradients out, whatever the level of each layer.

DDP accepts a hook once, so levels change inside it. DDP also rebuilds its buckets after the first step, so layers are
known by name and never by their place.
"""

# Annotations are evaluated here: DDP compares the hook's with its own types.

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from accordion.control import Word, empty_word, word_flow
from accordion.drive import GroupNetwork, drive
from accordion.engine import Engine, Layer, Stack
from accordion.errors import HookError
from accordion.feedback import working_dtype
from accordion.ledger import OVERHEAD
from accordion.messages import LayerInfo
from accordion.wire import Request


class Hook:
    """Registers itself with a DDP module and runs its engine's flows bucket by bucket, in bucket order.

    Collectives block inside the hook: on gloo, waiting in a future's callback from several buckets can deadlock.

    Raises:
        HookError: the module has a hook already.
    """

    def __init__(self, module: DistributedDataParallel, engine: Engine, raised: Callable[[], frozenset[Word]]) -> None:
        self.network = GroupNetwork(module.process_group)
        self._engine = engine
        self._raised = raised
        self._names = {id(parameter): name for name, parameter in module.module.named_parameters()}
        self._word = empty_word(_device(module))
        self._seen: Tensor | None = None
        try:
            module.register_comm_hook(None, self._on_bucket)
        except RuntimeError as error:
            raise HookError(
                f"DDP refused the hook ({error}); a module takes one hook, attach() to a new DDP"
            ) from error

    def take_word(self) -> Tensor:
        """The control word of the step's backward, averaged over the workers.

        Raises:
            HookError: no gradients were exchanged since the last call.
        """
        if self._seen is None:
            raise HookError("no gradients were exchanged since the last step; call backward() outside no_sync() first")
        word, self._seen = self._seen, None
        return word

    def _on_bucket(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:  # noqa: ARG002
        if self._seen is not None:
            raise HookError(
                "gradients were exchanged twice for one step; call backward() under no_sync() but for the last"
            )
        self._note_finite(bucket.buffer())
        layers = self._layers(bucket)
        self._engine.observe(layers)
        if self._engine.is_dense(layers):
            self._reduce_in_place(bucket.buffer(), layers)
            stacks: list[Stack] = []
        else:
            stacks = self._engine.prepare(layers)
        if stacks or bucket.is_last():
            self._run(stacks, with_word=bucket.is_last())
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def _run(self, stacks: list[Stack], *, with_word: bool) -> None:
        flows = [stack.flow for stack in stacks]
        owners = [stack.names for stack in stacks]
        if with_word:
            flows.append(word_flow(self._closing_word()))
            owners.append((OVERHEAD,))

        def count(index: int, request: Request) -> None:
            self._engine.ledger.count(owners[index], request)

        results = drive(flows, self.network, count)
        self._engine.finish(stacks, results[: len(stacks)])
        if with_word:
            self._seen = results[-1][0]
            self._word.zero_()

    def _reduce_in_place(self, buffer: Tensor, layers: list[Layer]) -> None:
        self._engine.settle_(layers)
        for layer in layers:
            self._engine.ledger.count_mean(layer.name, layer.gradient)
        self.network.mean_(buffer)

    def _note_finite(self, buffer: Tensor) -> None:
        """One pass and no wait for the device: a sum is finite only if every term is."""
        self._word[Word.NOT_FINITE] += torch.isfinite(buffer.sum(dtype=working_dtype(buffer))).logical_not()

    def _closing_word(self) -> Tensor:
        for word in self._raised():
            self._word[word] = 1.0
        return self._word

    def _layers(self, bucket: GradBucket) -> list[Layer]:
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        return [Layer(name=self._names[id(parameter)], gradient=gradient) for parameter, gradient in pairs]


def decided_layers(module: torch.nn.Module) -> tuple[LayerInfo, ...]:
    """The layers that decisions speak of: trained parameters of two or more dimensions, in the model's order."""
    return tuple(
        LayerInfo(name=name, shape=tuple(parameter.shape))
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and parameter.dim() > 1
    )


def _device(module: DistributedDataParallel) -> Any:
    return next(module.parameters()).device
