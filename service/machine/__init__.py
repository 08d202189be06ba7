"""A service on one machine: its programs, connection, logins and backups."""
