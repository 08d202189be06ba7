"""Every body on the wire."""
