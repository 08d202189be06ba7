"""Language models: predict the next token after each token of a sequence.

Shape letters: N sequences, T tokens each, V tokens in the vocabulary, C channels, H heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_INIT_STD = 0.02
"""Standard deviation of the transformer's initial weights, as in GPT-2."""
_EMBEDDING_BOUND = 0.1
"""Bound of the LSTM's uniform initial embeddings, as in PyTorch's word language model."""
_HIDDEN_FACTOR = 4
"""Hidden units of a transformer's feed-forward layer per channel."""


class LstmModel(nn.Module):
    """[N, T] tokens to [N, T, V] scores; every sequence starts from a state of zeros."""

    def __init__(
        self, vocabulary: int, *, width: int, layers: int, dropout: float, tied: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        # One layer has no dropout between layers, and torch warns if it is set.
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(width, width, layers, dropout=between, batch_first=True)
        self.output = nn.Linear(width, vocabulary)
        nn.init.uniform_(self.embedding.weight, -_EMBEDDING_BOUND, _EMBEDDING_BOUND)
        nn.init.uniform_(self.output.weight, -_EMBEDDING_BOUND, _EMBEDDING_BOUND)
        nn.init.zeros_(self.output.bias)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens_NT: Tensor) -> Tensor:
        """Return scores of the next token."""
        states_NTC, _ = self.lstm(self.dropout(self.embedding(tokens_NT)))
        scores: Tensor = self.output(self.dropout(states_NTC))
        return scores


class TransformerModel(nn.Module):
    """[N, T] tokens to [N, T, V] scores; T is at most `length`, attention looks back only
    (arXiv:1706.03762).
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        width: int,
        layers: int,
        heads: int,
        dropout: float,
        tied: bool,
        length: int,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.apply(_init_weights)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens_NT: Tensor) -> Tensor:
        """Return scores of the next token."""
        places_T = torch.arange(tokens_NT.shape[1], device=tokens_NT.device)
        x_NTC = self.dropout(self.embedding(tokens_NT) + self.places(places_T))
        for block in self.blocks:
            x_NTC = block(x_NTC)
        scores: Tensor = self.output(self.norm(x_NTC))
        return scores


class TransformerBlock(nn.Module):
    """Attention, then a feed-forward layer, each with a layer norm and a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.drop_rate = dropout
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm_hidden = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, _HIDDEN_FACTOR * width)
        self.output = nn.Linear(_HIDDEN_FACTOR * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_NTC: Tensor) -> Tensor:
        """Transform N sequences."""
        x_NTC = x_NTC + self.dropout(self.mix(self._attend(self.norm_attention(x_NTC))))
        hidden = functional.gelu(self.hidden(self.norm_hidden(x_NTC)))
        output: Tensor = x_NTC + self.dropout(self.output(hidden))
        return output

    def _attend(self, x_NTC: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x_NTC).chunk(3, dim=2)
        )
        rate = self.drop_rate if self.training else 0.0
        attended_NHTC = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=rate, is_causal=True
        )
        return attended_NHTC.transpose(1, 2).flatten(2)


def _init_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_INIT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


__all__ = ["LstmModel", "TransformerModel"]
