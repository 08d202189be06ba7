"""The scheduler's process: starts, watches and ends jobs, and keeps house."""
