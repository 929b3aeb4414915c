"""The options of `cloudmatrix quantize`; what does it is imported when it runs, so that `--help` is quick."""

import argparse
from pathlib import Path

from serving.errors import ConfigError
from serving.quantize.classes import INT8_CLASSES, class_table
from serving.quantize.settings import RANDOM_TOKENS, STEP_HELP, STEP_NAMES, TEXT_TOKENS, Settings, Steps


def add_command(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `quantize` to the commands.

    Effects: changes `subparsers`.
    """
    steps = "\n".join(f"  {name:<15} {text}" for name, text in STEP_HELP.items())
    quantize = subparsers.add_parser(
        "quantize",
        help="make an INT8 checkpoint of a model, without training, and say what it costs",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Quantise a DeepSeek-V2/V3-style checkpoint (bf16, float32 or FP8) to INT8: weights with one scale per\n"
            "output channel, activations rounded per token while serving. Training-free: text of the model's own\n"
            "kind is run through the model, layer by layer. Writes a Hugging Face folder (compressed-tensors,\n"
            "int-quantized) with a report of what every step is worth on text that was held out.\n\n"
            f"Operator classes (--keep):\n{class_table()}\n\nSteps (--without):\n{steps}"
        ),
        epilog=(
            "Examples:\n"
            "  cloudmatrix quantize --model deploy/models/storyteller --out storyteller-int8 --text stories.jsonl\n"
            "  cloudmatrix quantize --model DIR --out DIR-int8 --text a.txt b.txt --keep head --no-trials"
        ),
    )
    quantize.add_argument("--model", type=Path, required=True, metavar="DIR", help="the original checkpoint")
    quantize.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder; not overwritten")
    text_help = 'text to calibrate and measure with; a .jsonl file holds a document per line, {"text": "..."}'
    quantize.add_argument("--text", type=Path, nargs="+", default=[], metavar="FILE", help=text_help)
    tokens_help = f"of text to use, an eighth of it held out (default {TEXT_TOKENS}; without text {RANDOM_TOKENS})"
    quantize.add_argument("--tokens", type=int, metavar="N", help=tokens_help)
    keep_help = "operator classes to leave as they are"
    names = [operator.name for operator in INT8_CLASSES]
    quantize.add_argument("--keep", nargs="+", default=[], metavar="CLASS", choices=names, help=keep_help)
    quantize.add_argument(
        "--without", nargs="+", default=[], metavar="STEP", choices=STEP_NAMES, help="steps to leave out"
    )
    quantize.add_argument(
        "--no-trials", action="store_true", help="do not measure what each step is worth: several times quicker"
    )
    quantize.add_argument("--seed", type=int, default=0, help="chooses among a long text's passages (default 0)")
    report_help = "where the report goes too (Markdown, or JSON if it ends in .json); always in --out"
    quantize.add_argument("--report", type=Path, metavar="FILE", help=report_help)
    quantize.set_defaults(run=_run)


def settings_of(arguments: argparse.Namespace) -> Settings:
    """What the options ask for.

    Raises: ConfigError if there is nothing to calibrate with, or the seed is none.
    """
    tokens = (TEXT_TOKENS if arguments.text else RANDOM_TOKENS) if arguments.tokens is None else arguments.tokens
    if tokens < 1:
        raise ConfigError(f"--tokens {tokens} is not a number of tokens: give some thousands")
    if not 0 <= arguments.seed < 1 << 63:
        raise ConfigError(f"--seed {arguments.seed} must be between 0 and {(1 << 63) - 1}")
    steps = Steps()
    for name in arguments.without:
        steps = steps.without(name)
    return Settings(
        steps=steps,
        kept=frozenset(arguments.keep),
        tokens=tokens,
        trials=not arguments.no_trials,
        seed=arguments.seed,
    )


def _run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    from serving.quantize.console import run_on_console

    return run_on_console(arguments.model, arguments.out, arguments.text, settings, arguments.report)
