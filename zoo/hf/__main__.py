"""The command `python -m zoo.hf ckpt=PATH out=FOLDER`: exports a run for transformers.

With out=FILE.safetensors, it exports the weights alone, in one file and by the zoo's names,
whatever the model is made of.
"""

from __future__ import annotations

import sys
from pathlib import Path

from zoo.checkpoints import weights
from zoo.errors import ZooError, cli_errors, did_you_mean
from zoo.utils import extras

OPTIONS = ("ckpt", "out")


@cli_errors()
def main() -> None:
    options = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    if not options or {"-h", "--help"} & set(options):
        print(f"usage: python -m zoo.hf ckpt=PATH out=FOLDER\n\n{__doc__}")
        return
    for name in options:
        if name not in OPTIONS:
            raise ZooError(
                f"unknown option {name!r}: write ckpt=PATH out=FOLDER{did_you_mean(name, OPTIONS)}"
            )
    if not all(map(options.get, OPTIONS)):
        raise ZooError(
            "give both ckpt=PATH (a run's folder or a .ckpt file) and out=FOLDER (to be written)"
        )
    out = Path(options["out"])
    if out.suffix == ".safetensors":
        extras.need("safetensors", f"out={out}")
        from safetensors.torch import save_file

        save_file(weights.load_model(options["ckpt"])[0].state_dict(), out)
        print(f"{out} has the weights: safetensors.torch.load_file reads them")
        return
    extras.need("transformers", "zoo.hf")
    import transformers

    from zoo import hf

    transformers.logging.set_verbosity_error()  # its remarks on token ids, which are as intended
    transformers.logging.disable_progress_bar()
    hf.export(options["ckpt"], out)
    print(
        f"{out} has config.json, model.safetensors and the tokenizer:"
        " AutoModel.from_pretrained loads them"
    )


if __name__ == "__main__":
    main()
