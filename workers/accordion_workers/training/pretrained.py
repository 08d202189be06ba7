"""What a checkpoint keeps of a model of Transformers beside its tensors."""

from __future__ import annotations

import copy
import logging
import sys
from typing import Any

from torch import nn

logger = logging.getLogger(__name__)


def read_configs(model: nn.Module) -> dict[str, str]:
    """Return the files from which `from_pretrained` learns what a model is, by name, as JSON:
    `config.json` and, of a model that generates, `generation_config.json`.

    Empty for a module that is no `PreTrainedModel` of Transformers, and for one with adapters,
    whose tensors are not those of its class. Also empty, with a warning, if the configuration
    cannot be written as JSON: training and its checkpoints do not need it.
    """
    # Whoever built such a model has imported this.
    library = sys.modules.get("transformers.modeling_utils")
    if library is None or not isinstance(model, library.PreTrainedModel):
        return {}
    if getattr(model, "_hf_peft_config_loaded", False):
        return {}
    try:
        return _write_configs(model)
    except Exception as error:  # noqa: BLE001 - the job's own code may run here
        logger.warning("the configuration of the model cannot be saved as JSON (%s)", error)
        return {}


def _write_configs(model: Any) -> dict[str, str]:
    """Write the configuration with what `save_pretrained` sets in it; the model keeps its own."""
    config = copy.deepcopy(model.config)
    # FSDP puts a class of its own over that of the model.
    config.architectures = [type(model).__name__.removeprefix("FSDP")]
    config.dtype = str(model.dtype).removeprefix("torch.")
    files: dict[str, str] = {"config.json": config.to_json_string()}
    if model.can_generate() and model.generation_config is not None:
        files["generation_config.json"] = model.generation_config.to_json_string()
    return files


__all__ = ["read_configs"]
