"""The control plane: api, scheduler, database, dashboard."""
