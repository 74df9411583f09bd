"""Sphinx's configuration of the site; `python docs/build_site.py` builds it."""

import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

project = "fastbert"
author = "the fastbert authors"
copyright = "the fastbert authors, Apache-2.0"
version = release = version_of("fastbert-engine")
language = "en"

extensions = ["myst_parser", "sphinx_copybutton", "website.extension"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["files/**"]
nitpicky = True
nitpick_ignore_regex = [("py:(class|data|obj)", ".*")]  # types of other packages; the tests check our own names
default_role = None
highlight_language = "text"
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
python_maximum_signature_line_length = 84
python_use_unqualified_type_names = True
toc_object_entries = False  # the reference has headings; entries would be copied into every page's navigation
smartquotes = False
numfig = False

myst_heading_anchors = 6
myst_links_external_new_tab = False
myst_enable_extensions: set[str] = set()

html_theme = "furo"
html_title = "fastbert"
html_baseurl = os.environ.get("FASTBERT_SITE_URL", "")
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(HERE / "static" / "scorer.js")
html_use_index = False
html_favicon = str(HERE / "static" / "icon.svg")
html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None
html_theme_options = {
    "navigation_with_keys": True,
    "top_of_page_buttons": [],
    "light_css_variables": {
        "color-brand-primary": "#0b5fa5",
        "color-brand-content": "#0b5fa5",
        "color-brand-visited": "#6b3fa0",
        "color-foreground-muted": "#55595f",
        "color-foreground-secondary": "#4c5157",
        "color-code-background": "#f6f8fa",
        "color-api-overall": "#4c5157",
        "color-api-name": "#0a4d86",
        "color-api-pre-name": "#0a4d86",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7db8f0",
        "color-brand-content": "#7db8f0",
        "color-brand-visited": "#c3a5f0",
        "color-foreground-muted": "#a4acb6",
        "color-foreground-secondary": "#b6bdc7",
        "color-api-overall": "#b6bdc7",
        "color-api-name": "#9ccaf5",
        "color-api-pre-name": "#9ccaf5",
    },
}
copybutton_prompt_text = r"^\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = False

# For the person who publishes: `python docs/build_site.py --linkcheck`.
linkcheck_anchors = False
linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1|0\.0\.0\.0)\b.*"]
