"""Build the documentation site: `python docs/build_site.py`, then open build/site/html/index.html.

    --linkcheck   request every external link instead (needs a network)
    --out FOLDER  write elsewhere than build/site

FASTBERT_SITE_URL is the address at which the site will stand, for canonical links; it may be left out.

Needs `pip install '.[docs]'`. Warnings are errors; links and anchors of the result are checked, and that no page loads
anything from another host.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from website.build import main

if __name__ == "__main__":
    sys.exit(main())
