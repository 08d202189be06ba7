"""An MCP server, by which an agent reads jobs and overrides their schedules within limits."""
