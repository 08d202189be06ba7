"""Signs the requests of webhooks as the Standard Webhooks specification says
(https://www.standardwebhooks.com).
"""

from __future__ import annotations

import hmac
import secrets
from base64 import b64decode, b64encode
from hashlib import sha256

SECRET_PREFIX = "whsec_"  # noqa: S105  # what the specification calls the kind of secret
_SECRET_BYTES = 32


def new_signing_secret() -> str:
    """Return a new secret: the prefix, and random bytes in base64."""
    return SECRET_PREFIX + b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def sign_message(secret: str, message_id: str, *, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers by which a receiver verifies a message.

    The signature is HMAC-SHA256 of `ID.TIMESTAMP.BODY`, with the bytes of the secret as key.

    Args:
        secret: secret of the webhook.
        message_id: ID that is the same in every attempt.
        timestamp: time of the attempt in seconds since 1970, so that an old request cannot be
            sent again by somebody else.
        body: body of the request.
    """
    key = b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    signature = b64encode(hmac.digest(key, signed, sha256)).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }
