"""Continue a text with a trained model: `python -m zoo.generate ckpt=PATH prompt="..."`.

A model that fills masks or gaps does so wherever the prompt has a [MASK].
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from zoo.errors import ZooError, cli_errors, did_you_mean, first_line
from zoo.utils.progress import doing


@dataclass
class Request:
    """The options of the command, as NAME=VALUE."""

    ckpt: str = MISSING  # a run's folder or a .ckpt file
    prompt: str = ""
    tokens: int = 200  # at most
    temperature: float = 0.8  # 0: always the likeliest
    top_k: int | None = 50
    seed: int = 0


@cli_errors()
def main() -> None:
    words = sys.argv[1:]
    if not words or {"-h", "--help"} & set(words):
        shown = " ".join(
            f"{word.name}={'PATH' if word.default == MISSING else word.default}"
            for word in fields(Request)
        )
        print(f"usage: python -m zoo.generate {shown}\n\n{__doc__}")
        return
    request = parse(words)
    with doing("loading the model", stream=sys.stderr):
        from zoo.checkpoints import weights
        from zoo.generation import prompting
        from zoo.utils import allocator

        allocator.keep_freed()
        model, tokenizer, config = weights.load_model(request.ckpt)
    sampling = {
        name: value for name, value in vars(request).items() if name not in ("ckpt", "prompt")
    }
    with doing("generating", stream=sys.stderr):
        answer = prompting.prompter(config, model, tokenizer).answer(request.prompt, **sampling)
    print(answer)


def parse(words: list[str]) -> Request:
    """Parse NAME=VALUE arguments; a prompt is taken literally.

    Raises ZooError for an unknown or repeated option and for a wrong type.
    """
    known, given = [option.name for option in fields(Request)], dict[str, str]()
    request = OmegaConf.structured(Request)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in known:
            raise ZooError(
                f"unknown option {word!r}: write ckpt=PATH prompt=TEXT{did_you_mean(key, known)}"
            )
        if key in given:
            raise ZooError(
                f"{key} is given twice: write {key}=... once, in quotes where it has spaces"
            )
        given[key] = value
        try:
            if key not in ("ckpt", "prompt"):  # in which OmegaConf would read ${...}
                request[key] = None if value == "null" and key == "top_k" else value
        except OmegaConfBaseException as error:
            raise ZooError(f"{key}: {first_line(error)}") from error
    if not given.get("ckpt"):
        raise ZooError("which model? give ckpt=PATH, a run's folder or a .ckpt file")
    made = OmegaConf.to_object(OmegaConf.merge(request, {"ckpt": ""}))
    assert isinstance(made, Request)
    return replace(made, ckpt=given["ckpt"], prompt=given.get("prompt", made.prompt))


if __name__ == "__main__":
    main()
