"""What a checkpoint keeps of a model of Transformers beside its tensors."""

from __future__ import annotations

import copy
import sys

from torch import nn


def read_configs(model: nn.Module) -> dict[str, str]:
    """Return the files from which `from_pretrained` learns what a model is, by name, as JSON:
    `config.json` and, of a model that generates, `generation_config.json`.

    Empty for a module that is no `PreTrainedModel` of Transformers, and for one with adapters,
    whose tensors are not those of its class.
    """
    # Whoever built such a model has imported this.
    library = sys.modules.get("transformers.modeling_utils")
    if library is None or not isinstance(model, library.PreTrainedModel):
        return {}
    if getattr(model, "_hf_peft_config_loaded", False):
        return {}
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    files: dict[str, str] = {"config.json": config.to_json_string()}
    if model.can_generate() and model.generation_config is not None:
        files["generation_config.json"] = model.generation_config.to_json_string()
    return files


__all__ = ["read_configs"]
