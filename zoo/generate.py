"""The command line `python -m zoo.generate ckpt=PATH prompt="..."`: a trained model goes on with a text.

One that fills gaps does so wherever the prompt has a [MASK].
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from zoo.registry import ZooError, did_you_mean, first_line


@dataclass
class Request:
    """What can be asked for, as WORD=VALUE."""

    ckpt: str = MISSING  # a run's folder or a .ckpt file
    prompt: str = ""
    tokens: int = 200  # at most
    temperature: float = 0.8  # 0: always the likeliest
    top_k: int | None = 50
    seed: int = 0


def main() -> None:
    words = sys.argv[1:]
    if not words or {"-h", "--help"} & set(words):
        shown = " ".join(f"{word.name}={'PATH' if word.default == MISSING else word.default}" for word in fields(Request))
        print(f"usage: python -m zoo.generate {shown}\n\n{__doc__}")
        return
    try:
        request = parse(words)
        from zoo import lit, storage

        model, tokenizer, config = storage.load_model(request.ckpt)
        how = {name: value for name, value in vars(request).items() if name not in ("ckpt", "prompt")}
        print(lit.learner(config, model, tokenizer).answer(request.prompt, **how))
    except ZooError as error:
        sys.exit(f"error: {error}")


def parse(words: list[str]) -> Request:
    """WORD=VALUE arguments as a request; a prompt is taken as it stands.

    Raises ZooError for an unknown word or a wrong type.
    """
    known = [option.name for option in fields(Request)]
    request = OmegaConf.structured(Request)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in known:
            raise ZooError(f"unknown word {word!r}: write ckpt=PATH prompt=TEXT{did_you_mean(key, known)}")
        try:
            request[key] = None if value == "null" and key == "top_k" else value
        except OmegaConfBaseException as error:
            raise ZooError(f"{key}: {first_line(error)}") from error
    if OmegaConf.is_missing(request, "ckpt"):
        raise ZooError("which model? give ckpt=PATH, a run's folder or a .ckpt file")
    made = OmegaConf.to_object(request)
    assert isinstance(made, Request)
    return made


if __name__ == "__main__":
    main()
