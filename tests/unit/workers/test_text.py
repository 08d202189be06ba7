"""Texts as sequences of tokens."""

from __future__ import annotations

import pytest
import torch

from accordion_workers.data.files import DataError
from accordion_workers.data.text import SequenceData, Vocabulary, read_texts, tokenize_text
from tests.unit.workers.datasets import TEXT


def written(root, *names: str):
    for name in names:
        (root / name).write_text(f"text of {name}\n")
    return root


def test_a_single_file_is_split_at_the_start_of_a_line_and_nothing_is_lost(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text(TEXT)
    train, held_out = read_texts(path)
    assert train + held_out == TEXT
    assert train.endswith("\n")
    assert 0.08 < len(held_out) / len(TEXT) <= 0.1  # a tenth, less a line at most
    assert read_texts(tmp_path) == (train, held_out)


def test_a_text_of_one_line_is_split_all_the_same(tmp_path):
    (tmp_path / "one.txt").write_text("x" * 100)
    assert [len(text) for text in read_texts(tmp_path / "one.txt")] == [90, 10]


@pytest.mark.parametrize(
    ("names", "train", "held_out"),
    [
        (
            ["wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"],
            "wiki.train.tokens",
            "wiki.valid.tokens",
        ),
        (["train.txt", "test.txt", "README"], "train.txt", "test.txt"),
        (["ptb.train.txt", "ptb.val.txt", "notes.txt"], "ptb.train.txt", "ptb.val.txt"),
        (["valid.txt", "test.txt", "SOURCE.txt"], "test.txt", "valid.txt"),
    ],
)
def test_names_say_what_a_text_is_for(tmp_path, names, train, held_out):
    assert read_texts(written(tmp_path, *names)) == (f"text of {train}\n", f"text of {held_out}\n")


def test_texts_that_nobody_can_use_are_refused_with_the_way_out(tmp_path):
    with pytest.raises(DataError, match=r"there is no text at '.*nowhere' .*; put it there"):
        read_texts(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"\(found: none\)"):
        read_texts(tmp_path)
    with pytest.raises(
        DataError, match=r"\(found: one.txt, two.txt\); call two of them train.txt and valid.txt"
    ):
        read_texts(written(tmp_path, "one.txt", "two.txt"))
    (tmp_path / "latin").write_bytes("é".encode("latin1"))
    with pytest.raises(DataError, match=r"is no text in UTF-8 .*; convert it"):
        read_texts(tmp_path / "latin")


def test_words_end_with_their_line_and_characters_are_what_they_are():
    assert tokenize_text("a bc\n\n d", "words") == ["a", "bc", "<eos>", "<eos>", "d", "<eos>"]
    assert list(tokenize_text("a\nb", "chars")) == ["a", "\n", "b"]


def test_wikitext2_has_the_published_number_of_tokens(require):
    train, held_out = read_texts(require.data("wikitext2-valid-test"))
    assert len(tokenize_text(held_out, "words")) == 217_646
    assert len(tokenize_text(train, "words")) == 245_569


def test_the_vocabulary_keeps_the_most_frequent_tokens_and_the_rest_is_unknown():
    vocabulary = Vocabulary.of(["a", "b", "b", "c", "c", "c"], limit=3)
    assert dict(vocabulary.numbers) == {"<unk>": 0, "c": 1, "b": 2}
    assert vocabulary.encode(["c", "a", "z", "<unk>"]).tolist() == [1, 0, 0, 0]


def test_a_text_that_says_unknown_itself_has_it_once_in_its_vocabulary():
    vocabulary = Vocabulary.of(["<unk>", "<unk>", "a", "b"], limit=3)
    assert dict(vocabulary.numbers) == {"<unk>": 0, "a": 1, "b": 2}


def test_every_sequence_continues_the_one_before_and_targets_are_shifted_by_one():
    data = SequenceData.cut(torch.arange(23), length=5)
    inputs, targets = data.batch(torch.arange(len(data)))
    assert inputs.flatten().tolist() == [*range(20)]
    assert torch.equal(targets, inputs + 1)


@pytest.mark.parametrize(("tokens", "samples"), [(10, 1), (11, 2), (6, 1)])
def test_the_last_sequence_needs_a_token_after_it(tokens, samples):
    assert len(SequenceData.cut(torch.arange(tokens), length=5)) == samples


def test_samples_can_be_read_in_any_order():
    inputs, _ = SequenceData.cut(torch.arange(23), length=5).batch(torch.tensor([2, 0]))
    assert inputs.tolist() == [[10, 11, 12, 13, 14], [0, 1, 2, 3, 4]]


def test_a_limit_takes_the_first_sequences_and_no_more_than_there_are():
    assert [
        len(SequenceData.cut(torch.arange(23), length=5, samples=most)) for most in (2, 99, 0)
    ] == [2, 4, 4]


def test_a_text_too_short_for_one_sequence_is_refused():
    with pytest.raises(
        DataError, match="has 5 tokens, too few for one sequence of 5; take a shorter sequence"
    ):
        SequenceData.cut(torch.arange(5), length=5)
