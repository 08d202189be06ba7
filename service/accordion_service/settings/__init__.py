"""What an operator configures: settings, the home directory, and the keys and secrets in it."""
