"""Authorization of requests: guards, token, login."""
