"""Text as fixed-length sequences of tokens, for training language models.

Tokens are characters, or words separated by blanks; with words, the end of each line is a token of
its own, as in the published counts of WikiText-2 (217,646 for its validation text).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import torch
from torch import Tensor

from accordion_workers.data.files import DataError

TokenKind = Literal["chars", "words"]
UNKNOWN = "<unk>"
"""Token that stands for all tokens outside the vocabulary."""
END_OF_LINE = "<eos>"
_HELD_OUT_PART = 10
"""The last of this many parts of a single text is held out."""
_SUFFIXES = frozenset({".txt", ".tokens", ".raw"})
_ROLES = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
"""Role of a text by a word in its file's name."""


def read_texts(path: Path) -> tuple[str, str]:
    """Return the text to train on and the text to evaluate on.

    A file is split: its last tenth, from the start of a line, is held out. A folder holds either
    one text, or several with telling names (`wiki.train.tokens`, `valid.txt`): evaluation takes the
    validation text, else the test text; if there is no training text, but both of these, the test
    text is trained on.

    Raises:
        DataError: there is no text, or several without telling names.
    """
    if path.is_file():
        return _split_text(path)
    if not path.is_dir():
        raise DataError(
            f"there is no text at {str(path)!r} on this machine; put it there, or name another path"
            " in data"
        )
    texts = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
    by_role = {role: file for file in texts if (role := _find_role(file))}
    held_out = by_role.pop("valid", None) or by_role.pop("test", None)
    train = by_role.get("train") or by_role.get("test")
    if train and held_out:
        return _read_text(train), _read_text(held_out)
    if len(texts) == 1:
        return _split_text(texts[0])
    names = ", ".join(file.name for file in texts) or "none"
    raise DataError(
        f"folder {str(path)!r} does not say which text to train and which to evaluate on (found:"
        f" {names}); call two of them train.txt and valid.txt, or name a single file in data"
    )


def _find_role(file: Path) -> str | None:
    words = re.split(r"[._-]", file.name.lower())
    return next((_ROLES[word] for word in words if word in _ROLES), None)


def _split_text(file: Path) -> tuple[str, str]:
    text = _read_text(file)
    cut = len(text) - len(text) // _HELD_OUT_PART
    line = text.find("\n", cut) + 1
    cut = line if 0 < line < len(text) else cut
    return text[:cut], text[cut:]


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{str(file)!r} is no text in UTF-8 ({error}); convert it, or name another in data"
        ) from error


def tokenize_text(text: str, kind: TokenKind) -> Sequence[str]:
    """Return the text's tokens, in order."""
    if kind == "chars":
        return text
    return [token for line in text.splitlines() for token in (*line.split(), END_OF_LINE)]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Numbers of the tokens; 0 is `UNKNOWN`."""

    numbers: Mapping[str, int]

    @classmethod
    def of(cls, tokens: Sequence[str], *, limit: int) -> Self:
        """Number the most frequent tokens, `limit` including `UNKNOWN`; on ties, the first in the
        text.
        """
        frequent = (token for token, _ in Counter(tokens).most_common(limit) if token != UNKNOWN)
        names = [UNKNOWN, *frequent][:limit]
        return cls({name: number for number, name in enumerate(names)})

    def __len__(self) -> int:
        return len(self.numbers)

    def encode(self, tokens: Sequence[str]) -> Tensor:
        """Return one number per token, int64."""
        numbers = self.numbers
        return torch.tensor([numbers.get(token, 0) for token in tokens], dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class SequenceData:
    """Sample i is the i-th run of `length` tokens; its target is the same run one token later.

    Tokens left over at the end of the text belong to no sample.
    """

    tokens: Tensor
    length: int
    samples: int

    @classmethod
    def cut(cls, tokens: Tensor, *, length: int, samples: int = 0) -> Self:
        """Return the first `samples` sequences of a text, or all of them for 0.

        Raises:
            DataError: the text is shorter than one sequence.
        """
        whole = (len(tokens) - 1) // length
        if whole < 1:
            raise DataError(
                f"a text has {len(tokens)} tokens, too few for one sequence of {length}; take a"
                " shorter sequence or a longer text"
            )
        return cls(tokens, length, min(samples or whole, whole))

    def __len__(self) -> int:
        return self.samples

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens and their successors, both int64 [N, length]."""
        places = indices[:, None] * self.length + torch.arange(self.length + 1)
        sequences = self.tokens[places]
        return sequences[:, :-1], sequences[:, 1:]


__all__ = [
    "END_OF_LINE",
    "UNKNOWN",
    "SequenceData",
    "TokenKind",
    "Vocabulary",
    "read_texts",
    "tokenize_text",
]
