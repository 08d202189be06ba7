"""The database: tables, migrations, reads and guarded writes."""
