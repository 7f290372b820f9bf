"""A small source of data and its token cache."""

from pathlib import Path

from zoo.data.files import Text

STRANGE = (
    "naïve 北京 🧑🏽‍🚀\u2028\r\n\x00\t tab  two\n\n\n<|endoftext|> \ufeff\u0301 ﷽ \U0010ffff end"
)


def source(folder: Path) -> Text:
    """The small files as a source that has every split."""
    return Text(path=str(folder), val_fraction=0.2, test_fraction=0.1)


def only(root: Path) -> Path:
    """The one folder of a cache."""
    (folder,) = root.iterdir()
    return folder
