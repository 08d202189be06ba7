"""A service on this machine: its programs, how they start and stop, how a client finds them."""
