"""Language models: the next character or word of a text, by an LSTM or a transformer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from accordion.base.messages import OptionValue
from accordion_workers.data import Data
from accordion_workers.data.files import expand_path
from accordion_workers.data.text import (
    SequenceData,
    TokenKind,
    Vocabulary,
    read_texts,
    tokenize_text,
)
from accordion_workers.models.language import LstmModel, TransformerModel


class LanguageTask(ABC):
    """A language model's task. Options: `data`, `tokens`, `vocabulary`, `sequence`, `samples`,
    `eval_samples`, and the model's.

    A sample is one sequence. All have the same length, so a mean over samples is one over tokens.
    """

    geometric = ("perplexity",)
    """Perplexity is exp of the mean loss: the geometric mean over samples."""

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        self._options = options
        self._length = int(options["sequence"])
        kind = cast("TokenKind", options["tokens"])
        train, held_out = (
            tokenize_text(text, kind) for text in read_texts(expand_path(str(options["data"])))
        )
        vocabulary = Vocabulary.of(train, limit=int(options["vocabulary"]))
        self._words = len(vocabulary)
        self._train, self._eval = (
            SequenceData.cut(
                vocabulary.encode(tokens), length=self._length, samples=int(options[limit])
            )
            for tokens, limit in ((train, "samples"), (held_out, "eval_samples"))
        )

    @abstractmethod
    def model(self) -> nn.Module:
        """Return the model: [N, T] tokens to [N, T, V] scores."""

    def train_data(self) -> Data:
        """Return sequences of the training text."""
        return self._train

    def eval_data(self) -> Data:
        """Return sequences of the held-out text, in the training text's vocabulary."""
        return self._eval

    def loss(self, outputs: Tensor, targets: Tensor, *, step: int) -> Tensor:  # noqa: ARG002
        """Return the cross entropy per token, in nats."""
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def metrics(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return the cross entropy per token, and its exponential."""
        # In float64, because the exponential of a float32 loss above 88 overflows.
        loss = self.loss(outputs, targets, step=0).double()
        return {"loss": loss, "perplexity": loss.exp()}


class LmLstm(LanguageTask):
    """Options of the model: `width`, `layers`, `dropout`, `tied`."""

    def model(self) -> nn.Module:
        """Return a model with the layers `embedding`, `lstm` and `output`."""
        return LstmModel(
            self._words,
            width=int(self._options["width"]),
            layers=int(self._options["layers"]),
            dropout=float(self._options["dropout"]),
            tied=bool(self._options["tied"]),
        )


class LmTransformer(LanguageTask):
    """Options of the model: `width`, `layers`, `heads`, `dropout`, `tied`.

    Raises:
        ValueError: the heads do not divide the width.
    """

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        width, heads = int(options["width"]), int(options["heads"])
        if width % heads:
            raise ValueError(
                f"width is {width}, which {heads} heads cannot share; take a multiple of heads"
            )
        super().__init__(options)

    def model(self) -> nn.Module:
        """Return a model with the layers `embedding`, `places`, `blocks` and `output`."""
        return TransformerModel(
            self._words,
            width=int(self._options["width"]),
            layers=int(self._options["layers"]),
            heads=int(self._options["heads"]),
            dropout=float(self._options["dropout"]),
            tied=bool(self._options["tied"]),
            length=self._length,
        )


__all__ = ["LmLstm", "LmTransformer"]
