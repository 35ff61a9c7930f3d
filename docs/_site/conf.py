"""Sphinx's configuration of the site; `build.py` runs it on a copy of the pages."""

import logging
import os
import sys
from pathlib import Path

from jupyter_client.manager import KernelManager

HERE = Path(os.environ["QKV_SITE"])
sys.path[:0] = [str(HERE), str(HERE.parent.parent), str(HERE.parent.parent / "src")]

from qkv._version import VERSION  # noqa: E402

project = "qkv"
author = "The qkv authors"
copyright = "2026, the qkv authors"
release = VERSION

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "extension",
]
exclude_patterns = ["_site"]
nitpicky = False
default_role = "code"
smartquotes = False  # quotation marks are often part of a value: "" is no text

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = os.environ.get("QKV_NOTEBOOKS", "cache")
nb_execution_cache_path = os.environ["QKV_NOTEBOOK_CACHE"]
nb_execution_timeout = 600
nb_execution_raise_on_error = False  # a failing cell is a warning, and warnings are errors; the other chapters run
nb_execution_in_temp = True
nb_merge_streams = True
KernelManager.transport_encryption.default_value = "auto"  # without it, each notebook's kernel warns
logging.getLogger("traitlets").setLevel(logging.WARNING)  # importing a11y_pygments shows messages of every library
nb_code_prompt_show = "Show a right answer"
nb_code_prompt_hide = "Hide it"

napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Source", "notes_style"), ("Sources", "notes_style"), ("Shapes", "notes_style")]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autosummary_generate = False
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = "qkv"
html_static_path = [str(HERE / "static")]
html_css_files = ["qkv.css"]
html_theme_options = {"navigation_with_keys": True}
html_show_sourcelink = False
html_copy_source = False
mathjax_path = "mathjax/tex-svg.js"
