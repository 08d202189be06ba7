"""Pure logic of jobs, the queue, allocation and overrides; no framework."""
