from pathlib import Path

import numpy as np
import pytest

from tests.helpers.token_caches import STRANGE
from zoo.data.tokens import Tokens


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty small text files, of several kinds and depths."""
    root = tmp_path / "texts"
    for number in range(40):
        path = root / f"part{number % 3}" / f"{number}.{('txt', 'md', 'py')[number % 3]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            (f"file {number}\r\n" * 5 + STRANGE.replace("\x00", "") * (number % 4)).encode()
        )
    return root


@pytest.fixture
def tokens() -> Tokens:
    """Documents of 0 to 6 tokens, 45 ids in all; end-of-text is 99 and the other ids count up."""
    lengths = [3, 0, 6, 2, 5, 4, 1, 6, 3, 5]
    ids, starts, value = [], [], 0
    for length in lengths:
        starts.append(len(ids))
        ids += [99, *range(value, value + length)]
        value += length
    return Tokens(np.array(ids, dtype=np.uint16), np.array(starts), bytes=value, eot=99)
