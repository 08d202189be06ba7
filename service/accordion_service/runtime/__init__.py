"""Where jobs run: the protocol, and Ray behind it."""
