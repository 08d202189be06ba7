"""Signs the requests of webhooks as the Standard Webhooks specification says
(https://www.standardwebhooks.com).
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha256
from secrets import token_bytes

SECRET_PREFIX = "whsec_"  # noqa: S105  # what the specification calls the kind of secret
_SECRET_BYTES = 32


def new_signing_secret() -> str:
    """Return a new secret: the prefix, and random bytes in base64."""
    return SECRET_PREFIX + b64encode(token_bytes(_SECRET_BYTES)).decode()


def sign_message(
    secrets: Sequence[str], message_id: str, *, timestamp: int, body: bytes
) -> dict[str, str]:
    """Return the headers by which a receiver verifies a message.

    A signature is HMAC-SHA256 of `ID.TIMESTAMP.BODY`, with the bytes of a secret as key. There is
    one for each secret, and a receiver accepts the message if one of them is right.

    Args:
        secrets: secrets of the webhook that are valid, the current one first.
        message_id: ID that is the same in every attempt.
        timestamp: time of the attempt in seconds since 1970, so that an old request cannot be
            sent again by somebody else.
        body: body of the request.
    """
    signed = f"{message_id}.{timestamp}.".encode() + body
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(_sign(signed, secret) for secret in secrets),
    }


def _sign(signed: bytes, secret: str) -> str:
    key = b64decode(secret.removeprefix(SECRET_PREFIX))
    return f"v1,{b64encode(hmac.digest(key, signed, sha256)).decode()}"
