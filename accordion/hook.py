"""One dispatcher hook for DDP: buckets in, averaged gradients out, whatever the level of each
layer.

DDP accepts a hook once, so levels change inside it. DDP can also rebuild its buckets after the
first step, so layers are identified by name and never by position.
"""

# Annotations are evaluated here: DDP compares the hook's with its own types.

import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from accordion.background import (
    Inline,
    OnStream,
    OnThread,
    Runner,
    backend_of,
    own_group,
    wait_at_exit,
)
from accordion.bucket_order import fix_buckets
from accordion.control import Word, empty_word, word_flow
from accordion.drive import GroupNetwork, drive
from accordion.engine import Engine, Layer, Stack
from accordion.errors import HookError
from accordion.gradients import as_real, gradients_of
from accordion.ledger import OVERHEAD
from accordion.messages import LayerInfo
from accordion.module_checks import check_join
from accordion.wire import Request

LONG_VECTOR = 1 << 20
"""Values from which a parameter of one dimension is compressed like a matrix; 4 MB in fp32.

Such a parameter is a table of one weight per feature. Shorter ones are biases and scales of norms,
which are few bytes and sensitive to errors.
"""


class Hook:
    """Registers itself with a DDP module and runs its engine's flows bucket by bucket, in bucket
    order.

    Waiting in a future's callback from several buckets can deadlock on gloo, so collectives block:
    in a thread beside the backward pass, or, with `overlap=False`, inside the hook.

    Raises:
        HookError: the module has a hook already.
    """

    def __init__(
        self,
        module: DistributedDataParallel,
        engine: Engine,
        raised: Callable[[], frozenset[Word]],
        *,
        loss_scale: Callable[[], float],
        pass_skipped_step: Callable[[Tensor], bool],
        overlap: bool,
    ) -> None:
        wait_at_exit()
        device = next(module.parameters()).device
        self._exchange_network, self._runner = _background(
            module.process_group, device, overlap=overlap
        )
        self._engine = engine
        self._raised = raised
        self._loss_scale = loss_scale
        self._pass_skipped_step = pass_skipped_step
        self._names = {
            id(parameter): name for name, parameter in named_layers(module.module).items()
        }
        self._reduced = reduced_layers(module)
        self._module = weakref.ref(module)  # DDP holds the hook
        self._handed_over: set[str] = set()
        self._word = empty_word(device)
        self._seen: Tensor | None = None
        self.waited_s = 0.0
        """Seconds in which training stood still for exchanges, encoding included; on GPUs the
        device's are not seen.
        """
        try:
            module.register_comm_hook(None, self._on_bucket)
        except RuntimeError as error:
            raise HookError(
                f"DDP refused the hook ({error}); a module takes one hook, attach() to a new DDP"
            ) from error
        if fix_buckets(module):
            module.register_comm_hook(None, self._on_bucket)  # the first went with the old buckets
        # Only DDP's Python reducer needs this list, and it is refused; copies of the module would
        # hold it.
        getattr(module, "_comm_hooks", []).clear()

    @property
    def has_gradients(self) -> bool:
        """Whether the gradients of a step were exchanged since the last step boundary."""
        self._runner.check()
        return self._seen is not None

    def remove(self) -> None:
        """Do nothing: a DDP module keeps its hook as long as it exists."""

    def take_word(self) -> Tensor:
        """The control word of the step's backward, averaged over the workers.

        Raises:
            HookError: no gradients were exchanged since the last call.
            Exception: the error of an exchange that failed during the backward pass, such as a lost
                connection.
        """
        self._runner.check()
        if self._seen is None:
            raise HookError(
                "not all gradients were exchanged since the last step; call backward() outside"
                " no_sync() first, attach() before the first forward pass, and give"
                " DistributedDataParallel find_unused_parameters=True if layers can be unused"
            )
        word, self._seen = self._seen, None
        return word

    def unused(self) -> list[str]:
        """Return the layers that no worker used in this step and whose gradients DDP left
        unchanged.

        Raises:
            HookError: the parameters that DDP exchanges are not those that were trainable at
                `attach`.
        """
        module = self._module()
        if module is None or not module.find_unused_parameters or module.static_graph:
            return []
        # DDP's own map, summed over the workers: a zero gradient does not show whether it was used.
        used = module.reducer._get_local_used_map().tolist()
        if len(used) != len(self._reduced):
            raise HookError(
                f"DDP exchanges {len(used)} parameters, but {len(self._reduced)} were trainable at"
                " attach(); freeze or unfreeze layers before the model is wrapped in"
                " DistributedDataParallel"
            )
        return [
            name
            for (name, parameter), count in zip(self._reduced.items(), used, strict=True)
            if not count and (parameter.grad is None or not module.gradient_as_bucket_view)
        ]

    def _on_bucket(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:  # noqa: ARG002
        self._check_turn()
        if bucket.index() == 0:
            self._engine.loss_scale = self._loss_scale()
        buffer, layers = bucket.buffer(), self._layers(bucket)
        is_last = self._is_last(bucket, layers)
        exchange = partial(
            self._exchange, buffer, layers, is_last=is_last, since=time.perf_counter()
        )
        future: torch.futures.Future[Tensor] = self._runner.submit(exchange, buffer)
        return future

    def _is_last(self, bucket: GradBucket, layers: list[Layer]) -> bool:
        """Return whether a bucket completes the step.

        In a static graph's first step DDP gives every bucket the index 0, so parameters are
        counted.
        """
        module = self._module()
        if module is None or not module.static_graph:
            return bool(bucket.is_last())
        names = {layer.name for layer in layers}
        if not names.isdisjoint(self._handed_over):  # an earlier backward pass was aborted
            self._handed_over.clear()
        self._handed_over |= names
        if len(self._handed_over) < len(self._reduced):
            return False
        self._handed_over.clear()
        return True

    def _check_turn(self) -> None:
        module = self._module()
        if module is not None:
            check_join(module)
        if self._seen is not None and not self._pass_skipped_step(self._seen):
            raise HookError(
                "gradients were exchanged twice for one step; call session.step() after each"
                " backward(), and run all other forward and backward passes, whose gradients are"
                " accumulated or discarded, under no_sync()"
            )

    def _exchange(
        self, buffer: Tensor, layers: list[Layer], *, is_last: bool, since: float
    ) -> None:
        self._engine.observe(layers)
        if self._engine.is_dense(layers):
            self._reduce_in_place(buffer, layers)
            stacks: list[Stack] = []
        else:
            stacks = self._engine.prepare(layers)
        if stacks or is_last:
            self._run(stacks, with_word=is_last)
        if is_last:
            self._mark_not_finite_(buffer)
        if is_last or not self._runner.beside:
            self.waited_s += time.perf_counter() - since

    def _run(self, stacks: list[Stack], *, with_word: bool) -> None:
        flows = [stack.flow for stack in stacks]
        owners = [(stack.names, stack.level.method) for stack in stacks]
        if with_word:
            flows.append(word_flow(self._closing_word()))
            owners.append(((OVERHEAD,), OVERHEAD))

        def count(index: int, request: Request) -> None:
            layers, method = owners[index]
            self._engine.ledger.count(layers, request, method)

        results = drive(flows, self._exchange_network, count)
        self._engine.finish(stacks)
        if with_word:
            self._seen = results[-1]
            self._word.zero_()

    def _reduce_in_place(self, buffer: Tensor, layers: list[Layer]) -> None:
        self._engine.settle_(layers)
        for layer in layers:
            self._engine.ledger.count_mean(layer.name, layer.gradient)
        self._exchange_network.mean_(buffer)

    def _closing_word(self) -> Tensor:
        self._word[Word.NOT_FINITE] = self._engine.not_finite()
        for word in self._raised():
            self._word[word] = 1.0
        return self._word

    def _mark_not_finite_(self, buffer: Tensor) -> None:
        """Let a gradient be NaN on all workers where one was not finite on any, as plain DDP would.

        Compression may hide it, and whoever looks at the gradients (a GradScaler, clipping) has to
        see it everywhere.
        """
        if self._seen is not None:
            buffer[:1].masked_fill_(self._seen[Word.NOT_FINITE] != 0, torch.nan)

    def _layers(self, bucket: GradBucket) -> list[Layer]:
        parameters = bucket.parameters()
        names = [self._names[id(parameter)] for parameter in parameters]
        gradients = gradients_of(bucket.buffer(), bucket.gradients(), parameters)
        return [
            Layer(name=name, gradient=gradient)
            for name, gradient in zip(names, gradients, strict=True)
        ]


def decided_layers(module: torch.nn.Module) -> tuple[LayerInfo, ...]:
    """Return the layers whose level is decided: trainable matrices, tensors, and long vectors.

    They are in the model's order. A complex parameter has the shape of its real view (`as_real`).
    """
    return tuple(
        LayerInfo(name=name, shape=tuple(as_real(parameter.detach()).shape))
        for name, parameter in named_layers(module).items()
        if parameter.requires_grad and (parameter.dim() > 1 or parameter.numel() >= LONG_VECTOR)
    )


def reduced_layers(module: DistributedDataParallel) -> dict[str, torch.nn.Parameter]:
    """Return the parameters whose gradients DDP exchanges, in the order in which it counts them."""
    names = {id(parameter): name for name, parameter in named_layers(module.module).items()}
    ddp: Any = module  # DDP's own list, because DDP matches names of ignored parameters differently
    parameters, _ = ddp._build_params_for_reducer()
    return {names[id(parameter)]: parameter for parameter in parameters}


def named_layers(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """All parameters, named alike whether or not the module is compiled."""
    return {_layer_name(name): parameter for name, parameter in module.named_parameters()}


def _layer_name(name: str) -> str:
    return name.replace("_orig_mod.", "")


def _background(
    group: dist.ProcessGroup, device: Any, *, overlap: bool
) -> tuple[GroupNetwork, Runner]:
    if not overlap:
        return GroupNetwork(group, device), Inline()
    if device.type == "cuda" and backend_of(group, device) == "nccl":
        return GroupNetwork(group, device), OnStream(device)
    return GroupNetwork(own_group(group), device), OnThread(device)
