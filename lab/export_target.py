"""Writes a run as a model folder in the Hub's layout, in bfloat16."""

import argparse
from pathlib import Path

import train_target as t

from dflash_lite import save_model
from dflash_lite.checkpoints import hub_tokenizer


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=t.HERE / "runs" / "tiny")
    parser.add_argument("--out", type=Path, default=t.HERE / "runs" / "export")
    args = parser.parse_args(argv)
    model = t.load_run(args.folder)
    save_model(model, hub_tokenizer(t.HERE / "tokenizer"), args.out)
    print(model.config.num_hidden_layers, "layers in", args.out)


if __name__ == "__main__":
    main()
