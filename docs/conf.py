"""Configuration of Sphinx: `make docs` builds the book from this folder and from the code."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("", "workers", "service", "docs")]

project = "Accordion"
author = "the Accordion authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinxcontrib.autodoc_pydantic",
    "reference_tables",
]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

# Options of commands are copied from the book: "--" stays as it is, and so do quotes.
smartquotes = False
html_theme = "pydata_sphinx_theme"
html_title = "Accordion"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": [],
    "footer_end": [],
}

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

# Optional frameworks, which take seconds to import.
autodoc_mock_imports = ["accelerate", "lightning", "pytorch_lightning", "transformers"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"

autodoc_pydantic_model_show_json = False
autodoc_pydantic_model_show_config_summary = False
autodoc_pydantic_model_show_validator_summary = False
autodoc_pydantic_model_show_validator_members = False
autodoc_pydantic_model_show_field_summary = False
autodoc_pydantic_model_undoc_members = False
autodoc_pydantic_model_member_order = "bysource"
autodoc_pydantic_model_hide_paramlist = True
autodoc_pydantic_field_list_validators = False
autodoc_pydantic_field_show_constraints = True
