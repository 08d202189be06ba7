"""Who asks, and whom the service may reach."""
