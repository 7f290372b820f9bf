"""`python -m ablations.report DIR`: what the runs of a study, or of any sweep, allow to be said.

Prints the conclusions, and writes report.html, report.md, table.tex, comparison.csv and runs.csv
into the folder.

accept=MODULE judges runs although the source of this module differs between them, which the report
then says. Each module is accepted by its name, as in accept=mypackage.norms; a third source of it
is another difference.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ablations.report.writing import show
from ablations.results import load, sources
from zoo.errors import cli_errors


@cli_errors()
def main() -> None:
    folders = [word for word in sys.argv[1:] if not word.startswith("accept=")]
    if len(folders) != 1 or folders[0] in ("-h", "--help"):
        sys.exit(f"usage: python -m ablations.report DIR [accept=MODULE ...]\n\n{__doc__}")
    for word in sys.argv[1:]:
        if word.startswith("accept="):
            sources.accept(load(Path(folders[0])), word.removeprefix("accept="))
    show(Path(folders[0]))


if __name__ == "__main__":
    main()
