"""The command line `python -m zoo.hf ckpt=PATH out=FOLDER`: a trained run as a folder that transformers loads.

With out=FILE.safetensors, its weights alone, in one file and in the zoo's names, whatever the model is made of.
"""

from __future__ import annotations

import sys
from pathlib import Path

from zoo.checkpoints import weights
from zoo.errors import ZooError, cli_errors, did_you_mean
from zoo.utils import extras

WORDS = ("ckpt", "out")


@cli_errors()
def main() -> None:
    given = dict(word.partition("=")[::2] for word in sys.argv[1:])
    if not given or {"-h", "--help"} & set(given):
        print(f"usage: python -m zoo.hf ckpt=PATH out=FOLDER\n\n{__doc__}")
        return
    for word in given:
        if word not in WORDS:
            raise ZooError(
                f"unknown word {word!r}: write ckpt=PATH out=FOLDER{did_you_mean(word, WORDS)}"
            )
    if not all(map(given.get, WORDS)):
        raise ZooError(
            "what, and where to? give ckpt=PATH (a run's folder or a .ckpt file) and out=FOLDER"
        )
    out = Path(given["out"])
    if out.suffix == ".safetensors":
        extras.need("safetensors", f"out={out}")
        from safetensors.torch import save_file

        save_file(weights.load_model(given["ckpt"])[0].state_dict(), out)
        print(f"{out} has the weights: safetensors.torch.load_file reads them")
        return
    extras.need("transformers", "zoo.hf")
    import transformers

    from zoo import hf

    transformers.logging.set_verbosity_error()  # its remarks on token ids, which are the tokenizer's own
    transformers.logging.disable_progress_bar()
    hf.export(given["ckpt"], out)
    print(
        f"{out} has config.json, model.safetensors and the tokenizer: AutoModel.from_pretrained loads them"
    )


if __name__ == "__main__":
    main()
