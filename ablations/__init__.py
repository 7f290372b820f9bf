"""The ablation harness: many runs, one conclusion."""

import sys

from zoo.utils import extras

for _needed in ("scipy", "matplotlib"):
    if _told := extras.missing(_needed, "the harness"):
        sys.exit(f"error: {_told}")
