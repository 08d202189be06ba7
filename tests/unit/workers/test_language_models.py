"""Language models: what they may see, and what they are made of."""

from __future__ import annotations

import math

import pytest
import torch

from accordion_workers.models.language import LstmModel, TransformerModel


def lstm(*, tied: bool = True, dropout: float = 0.0) -> torch.nn.Module:
    return LstmModel(11, width=8, layers=2, dropout=dropout, tied=tied)


def transformer(*, tied: bool = True, dropout: float = 0.0) -> torch.nn.Module:
    return TransformerModel(11, width=8, layers=2, heads=2, dropout=dropout, tied=tied, length=6)


MODELS = pytest.mark.parametrize("make", [lstm, transformer])


@pytest.fixture(autouse=True)
def seeded_generators():
    torch.manual_seed(0)


@MODELS
def test_a_token_changes_what_follows_it_and_nothing_before(make):
    model = make().eval()
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    other = tokens.clone()
    other[0, 3] = 9
    changed = (model(tokens) - model(other)).abs().amax(dim=2)[0] > 0
    assert changed.tolist() == [False, False, False, True, True, True]


@MODELS
def test_sequences_of_a_batch_do_not_see_each_other(make):
    model = make().eval()
    tokens = torch.randint(0, 11, (3, 6))
    # sums in another order
    assert torch.allclose(model(tokens)[1:2], model(tokens[1:2]), atol=1e-5)


@MODELS
def test_tied_models_share_the_embedding_with_the_output(make):
    tied, free = make(), make(tied=False)
    assert tied.output.weight is tied.embedding.weight
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (free, tied)]
    assert counts[0] - counts[1] == 11 * 8


@MODELS
def test_a_new_model_knows_nothing(make):
    scores = make().eval()(torch.randint(0, 11, (50, 6)))
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), torch.randint(0, 11, (300,)))
    assert loss.item() == pytest.approx(math.log(11), abs=0.05)


@MODELS
def test_dropout_is_there_in_training_only(make):
    model, tokens = make(dropout=0.5), torch.randint(0, 11, (2, 6))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_the_transformer_tells_the_same_tokens_at_other_places_apart():
    scores = transformer().eval()(torch.tensor([[3, 3, 3]]))
    assert not torch.allclose(scores[0, 0], scores[0, 2])


def test_the_lstm_of_the_recipe_has_one_embedding_a_bias_per_word_and_three_layers():
    model = LstmModel(28_869, width=650, layers=3, dropout=0.4, tied=True)
    layer = 4 * 650 * (650 + 650) + 8 * 650
    assert (
        sum(parameter.numel() for parameter in model.parameters())
        == 28_869 * 650 + 28_869 + 3 * layer
    )
