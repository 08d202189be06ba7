"""Which parameters train: each needs the exchange of gradients and an optimizer of the session."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from accordion.base.errors import HookError
from accordion.config import format_layers
from accordion.hook.layers import named_layers, reduced_layers
from accordion.hook.module_checks import unwrap_module

_EXCHANGED_LATER = (
    "so their gradients would not be exchanged and each worker would train them for itself;"
    " unfreeze and add layers before the model is wrapped in DistributedDataParallel (a learning"
    " rate of 0 keeps a layer as it is), or wrap the model again and attach() to the new wrapper"
)


class TrainedLayers:
    """Checks that the parameters that train are those of a module at `attach`.

    Raises:
        HookError: a parameter would train without an exchange, or would be exchanged and not train.
    """

    def __init__(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._module = weakref.ref(module)
        self._optimizers = optimizers
        trained = named_layers(unwrap_module(module))
        self._frozen = [one for one in trained.values() if not one.requires_grad]
        self._known = {id(one): one for one in trained.values() if one.requires_grad}
        """Parameters that train, by identity; they are kept so that no other one gets it."""
        self._num_held = self._count_held()
        exchanged = {name: one for name, one in trained.items() if one.requires_grad}
        if isinstance(module, DistributedDataParallel):
            exchanged = reduced_layers(module)
            _check_wrapped(module, exchanged)
        if optimizers:
            self._check_held(exchanged)
            self._check_known()

    def check(self) -> None:
        """Check, before a step, that no other parameters train by now; takes microseconds.

        Without an optimizer it takes about as long as `module.zero_grad()`.

        Raises:
            HookError: a layer was unfrozen or added, or an optimizer got another parameter.
        """
        held = self._count_held()
        is_as_before = held == self._num_held and not any(one.requires_grad for one in self._frozen)
        if self._optimizers and is_as_before:
            return
        self._num_held = held
        self._check_known()

    def _check_known(self) -> None:
        module = self._module()
        layers = {} if module is None else named_layers(unwrap_module(module))
        if added := [name for name, one in layers.items() if self._is_unknown(one)]:
            raise HookError(
                f"the layers {format_layers(added)} became trainable after attach(),"
                f" {_EXCHANGED_LATER}"
            )
        if outside := [one for one in self._list_held() if self._is_unknown(one)]:
            raise HookError(
                "the optimizer holds trainable parameters of no layer of this module, here of shape"
                f" {format_layers([str(tuple(one.shape)) for one in outside])}, whose gradients"
                " would not be exchanged; put all layers into one DistributedDataParallel, or give"
                " each module an optimizer and a session of its own"
            )

    def _check_held(self, exchanged: Mapping[str, Tensor]) -> None:
        for optimizer in self._optimizers:
            if not any(id(one) in self._known for one in parameters_of([optimizer])):
                raise HookError(
                    "attach() got an optimizer with none of the module's parameters; create it from"
                    " module.parameters()"
                )
        held = {id(one) for one in self._list_held()}
        if missing := [name for name, one in exchanged.items() if id(one) not in held]:
            raise HookError(
                f"attach() got no optimizer for the trainable layers {format_layers(missing)}; give"
                " it all optimizers of the module, as optimizer=[first, second], or freeze these"
                " layers by requires_grad_(False) before the model is wrapped"
            )

    def _is_unknown(self, parameter: Tensor) -> bool:
        return parameter.requires_grad and id(parameter) not in self._known

    def _list_held(self) -> list[Tensor]:
        return list(parameters_of(self._optimizers))

    def _count_held(self) -> int:
        return sum(len(group["params"]) for one in self._optimizers for group in one.param_groups)


def parameters_of(optimizers: Iterable[Optimizer]) -> Iterable[Tensor]:
    """Return the parameters of all groups of the optimizers."""
    return (
        parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def _check_wrapped(module: DistributedDataParallel, exchanged: Mapping[str, Tensor]) -> None:
    """Check that DDP knew these parameters when it wrapped the model.

    `attach` rebuilds DDP's buckets with layers that were unfrozen since then, but not where layers
    can be unused, and DDP has never made a layer equal on all workers that was added since then.

    Raises:
        HookError: a layer was unfrozen or added since then.
    """
    keeps_buckets = module.find_unused_parameters or module.static_graph
    ddp = module.reducer._get_zeros_like_grad_buckets() if keeps_buckets else ()
    wrapped = [one for bucket in ddp for one in bucket.parameters()]
    known = {id(one) for one in wrapped or module._module_parameters}
    if added := [name for name, one in exchanged.items() if id(one) not in known]:
        raise HookError(
            f"the layers {format_layers(added)} became trainable after the model was wrapped,"
            f" {_EXCHANGED_LATER}"
        )
