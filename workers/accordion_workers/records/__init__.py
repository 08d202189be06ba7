"""Messages between workers, plans and the service."""
