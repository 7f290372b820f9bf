"""The ablation harness: many runs, one conclusion."""

import importlib.util
import sys

for _needed in ("scipy", "matplotlib"):
    if importlib.util.find_spec(_needed) is None:
        sys.exit(f"error: the harness needs {_needed}: pip install -e '.[report]'")
