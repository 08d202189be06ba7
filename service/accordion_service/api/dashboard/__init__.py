"""Server-rendered pages that use the public REST API."""
