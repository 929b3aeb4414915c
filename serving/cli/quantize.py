"""`cloudmatrix quantize`: a checkpoint in INT8, without training."""

import argparse
from pathlib import Path

from serving.cli.options import folder_of
from serving.errors import ConfigError
from serving.tools.quantize.quantize_settings import (
    RANDOM_TOKENS,
    STEP_HELP,
    STEP_NAMES,
    TEXT_TOKENS,
    RecipeSteps,
    Settings,
)
from serving.tools.quantize.structure import INT8_CLASSES, class_table

_STEPS = "\n".join(f"  {name:<15} {text}" for name, text in STEP_HELP.items())
DESCRIPTION = f"""\
Quantise a checkpoint (bf16, float32 or FP8) to INT8: weights with one scale per output channel,
activations rounded per token while serving. Training-free: text of the model's own kind is run through the model, layer
by layer. Writes a Hugging Face folder (compressed-tensors, int-quantized) with a report of what every step is worth on
text that was held out.

Operator classes (--keep):
{class_table()}

Steps (--without):
{_STEPS}
"""
EPILOG = """\
Examples:
  cloudmatrix chat "Tell me a story." > stories.txt          (text of its own, from a running system)
  cloudmatrix quantize --model deploy/models/storyteller --out storyteller-int8 --text stories.txt
  cloudmatrix quantize --model DIR --out DIR-int8 --text a.txt b.txt --keep head --no-trials
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    model_help = "the original checkpoint: a folder, or org/name[@revision] of the Hugging Face Hub"
    parser.add_argument("--model", required=True, metavar="MODEL", help=model_help)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder; not overwritten")
    text_help = 'text to calibrate and measure with; a .jsonl file holds a document per line, {"text": "..."}'
    parser.add_argument("--text", type=Path, nargs="+", default=[], metavar="FILE", help=text_help)
    tokens_help = f"of text to use, an eighth of it held out (default {TEXT_TOKENS}; without text {RANDOM_TOKENS})"
    parser.add_argument("--tokens", type=int, metavar="N", help=tokens_help)
    keep_help = "operator classes to leave as they are"
    names = [operator.name for operator in INT8_CLASSES]
    parser.add_argument("--keep", nargs="+", default=[], metavar="CLASS", choices=names, help=keep_help)
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="STEP", choices=STEP_NAMES, help="steps to leave out"
    )
    parser.add_argument(
        "--no-trials", action="store_true", help="do not measure what each step is worth: several times quicker"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="chooses among a long text's passages (default 0)"
    )
    report_help = "another file for the report (Markdown, or JSON if it ends in .json), in addition to the one in --out"
    parser.add_argument("--report", type=Path, metavar="FILE", help=report_help)
    parser.add_argument("--quiet", action="store_true", help="no progress")


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings from the options.

    Raises: ConfigError without calibration data, or for an invalid seed.
    """
    tokens = (TEXT_TOKENS if arguments.text else RANDOM_TOKENS) if arguments.tokens is None else arguments.tokens
    if tokens < 1:
        raise ConfigError(f"--tokens {tokens} is not a number of tokens: give some thousands")
    if not 0 <= arguments.seed < 1 << 63:
        raise ConfigError(f"--seed {arguments.seed} must be between 0 and {(1 << 63) - 1}")
    steps = RecipeSteps()
    for name in arguments.without:
        steps = steps.without(name)
    return Settings(
        steps=steps,
        kept=frozenset(arguments.keep),
        tokens=tokens,
        trials=not arguments.no_trials,
        seed=arguments.seed,
    )


def run(arguments: argparse.Namespace) -> int:
    """Quantise.

    Raises: ConfigError, ModelError in one line.
    """
    settings = settings_of(arguments)
    model = folder_of(arguments.model)
    from serving.tools.quantize.quantize_run import run_on_console

    return run_on_console(model, arguments.out, arguments.text, settings, arguments.report, quiet=arguments.quiet)
