"""Who may ask: guards, token, login."""
