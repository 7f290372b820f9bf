"""Read what an offline run of W&B has written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def wandb_records(file: Path) -> Iterator[Any]:
    """What an offline run wrote: a log of 32 KiB blocks behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # all or the last piece of a record
            yield Record.FromString(whole)
            whole = b""


def read_wandb(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """Configuration, history and exit code of an offline run."""
    config: dict[str, Any] = {}
    history: list[dict[str, Any]] = []
    code = -1
    for record in wandb_records(file):
        if record.HasField("run"):
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.HasField("history"):
            history.append(
                {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
            )
        if record.HasField("exit"):
            code = record.exit.exit_code
    return config, history, code
