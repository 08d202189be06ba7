"""Integrations with training frameworks: one module per framework, imported only by scripts."""
