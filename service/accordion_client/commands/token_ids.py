"""IDs of tokens on the command line, where a whole token may be given in place of its ID."""

from __future__ import annotations

import re

import typer

from accordion_service.domain.tokens import TOKEN_ID, parse_token

_MAX_LENGTH = 16
"""Maximum characters of the ID of a token."""


def find_token_id(text: str) -> str:
    """Return the ID of a token that is given by it, or as it was printed when it was created.

    Nothing else is returned, because the ID is sent in an address, which servers write to logs.

    Raises:
        BadParameter: it is neither; the message does not repeat it.
    """
    token = parse_token(text)
    token_id = text.removeprefix("acc_") if token is None else token.id
    if len(token_id) > _MAX_LENGTH or not re.fullmatch(TOKEN_ID, token_id):
        raise typer.BadParameter(
            "this is neither the ID of a token nor a whole token, which begins with acc_ and its"
            " ID; 'accordion token list' shows IDs"
        )
    return token_id
