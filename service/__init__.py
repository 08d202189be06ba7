"""The control plane: api, scheduler, database, command line, dashboard."""
