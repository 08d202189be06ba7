"""Accordion in training frameworks: one module per framework, imported only by scripts that
use it.
"""
