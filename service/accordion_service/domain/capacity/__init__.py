"""Which jobs hold which part of the cluster, and what the others wait for."""
