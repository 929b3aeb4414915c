"""`cloudmatrix cost`: duration of one step on a device, operator by operator, and the accuracy of the prediction."""

import argparse
from typing import get_args

from loadgen.quantities import Duration
from serving.cli.cost_flags import DECODE_FLAGS, DIVISION_FLAGS, PREFILL_FLAGS
from serving.cli.options import add_engine
from serving.config.simulation import PrefillLayout

DESCRIPTION = """\
Predict how long one step takes on a device, without running anything. Decode by default: --batch sequences per NPU,
each with --context tokens. With --prefill: one prefill step of that many tokens.
"""
EPILOG = """\
Examples:
  cloudmatrix cost --batch 96 --context 4096 --explain
  cloudmatrix cost --tpot 30ms
  cloudmatrix cost --prefill 65536 --reuse 0.5
  cloudmatrix cost --aggregated --prefill 8192 --batch 48 --context 4096
  cloudmatrix cost --calibrate --device h100
  cloudmatrix cost --dies 16 --attention-tp 2 --batch 16
  cloudmatrix cost --dies 768 --expert-dies 288 --batch 120 --explain
  cloudmatrix cost --engine vllm-ascend --batch 48 --dies 32
  cloudmatrix cost --fit measured.csv --out my-engine.toml
  cloudmatrix cost --fit runs --dies 32 --out my-engine.toml
  cloudmatrix cost --judge others.csv --engine my-engine.toml

measured.csv: one measured step of your engine a row; two are enough, one of prefill and one of decode, more are better.
The first line names the columns; empty cells and lines that start with "#" are ignored.
  phase                  decode or prefill
  dies                   of the instance (an Ascend 910C has two)
  decode:  batch_per_npu        sequences that decode at once on each NPU
           context_tokens       of each, mean over its life: prompt and half of the answer
           tpot_ms              time per output token
           drafts, acceptance   if the engine drafts: tokens a step, share of them that is accepted
  prefill: tokens_per_die       prompt tokens that each die computes in a step
           prompt_tokens        of each prompt
           step_ms, or tokens_per_s_per_npu    of an instance that always has work, cached tokens included
           cached_share         of each prompt (default 0)
  source                 where the row is from
A run of loadgen, on one instance of each kind, yields a row of decode, and one of prefill if five of its prompts
did not wait in a queue. Drafts then count as a part of the engine: use --drafts 0.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    _add_questions(parser)
    _add_system(parser)
    parser.set_defaults(**DECODE_FLAGS, **PREFILL_FLAGS, **DIVISION_FLAGS)


def _add_questions(cost: argparse.ArgumentParser) -> None:
    what = cost.add_mutually_exclusive_group()
    what.add_argument(
        "--prefill", type=float, metavar="TOKENS", help="a prefill step; prompt tokens, cached ones included"
    )
    what.add_argument(
        "--tpot",
        type=Duration("ms", above_zero=True),
        metavar="T",
        help="the largest decode batch that keeps this time per token, e.g. 30 (milliseconds) or 30ms",
    )
    what.add_argument("--calibrate", action="store_true", help="refit to the published rows; print every error")
    what.add_argument(
        "--fit",
        metavar="FILE",
        help="find the profile of an engine from its measured steps, whose columns are named below; or from the folder"
        " of a run of `loadgen run --out`, or of several: add --dies; what --engine states by hand is kept",
    )
    what.add_argument(
        "--judge",
        metavar="FILE",
        help="predict measured steps that --engine was not fitted to: a file or runs, as of --fit",
    )
    what.add_argument("--list", action="store_true", help="devices and engines that come with the package")
    cost.add_argument("--out", metavar="FILE", help="with --fit: write the profile there, for --engine; ends in .toml")
    cost.add_argument("--batch", type=float, metavar="N", help="decode: sequences per NPU (default 96)")
    cost.add_argument("--context", type=float, metavar="TOKENS", help="decode: tokens of each sequence (default 4096)")
    cost.add_argument("--prompt", type=float, metavar="TOKENS", help="prefill: tokens of each prompt (default 4096)")
    cost.add_argument(
        "--reuse", type=float, metavar="SHARE", help="prefill: share of each prompt that is cached (default 0)"
    )
    cost.add_argument("--perfect-balance", action="store_true", help="prefill: all experts equally busy")
    cost.add_argument(
        "--aggregated",
        action="store_true",
        help="with --prefill: so many prompt tokens together with --batch running decodes, in one step of an instance"
        " that does both",
    )
    cost.add_argument("--explain", action="store_true", help="every operator: runs, time, what bounds it, formula")
    cost.add_argument("--markdown", action="store_true", help="with --calibrate: the error table for a README")
    cost.add_argument("--json", action="store_true", help="print the raw numbers (seconds, bytes)")


def _add_system(cost: argparse.ArgumentParser) -> None:
    model_help = "checkpoint folder, or org/name[@revision] of the Hugging Face Hub (default: DeepSeek-R1)"
    cost.add_argument(
        "--device", default="ascend-910c", metavar="NAME", help="a name from --list, or a TOML file of your own"
    )
    add_engine(cost)
    cost.add_argument("--model", default="deepseek-r1", metavar="MODEL", help=model_help)
    cost.add_argument(
        "--weights",
        default="",
        metavar="FORMAT",
        help="of the model: w8a8, fp8, bf16, w4a8, w8a16, w4a16, mxfp4, or two of them: attention+experts (default: as"
        " its config.json states, FP8 as W8A8 on a device that multiplies none)",
    )
    cost.add_argument(
        "--kv", choices=("bf16", "int8", "fp8"), help="format of the KV cache (default: as in config.json)"
    )
    cost.add_argument(
        "--dies", type=int, metavar="N", help="of the instance (default: 320 or 144 for decode, 32 for prefill)"
    )
    _add_division(cost)
    cost.add_argument(
        "--drafts",
        type=int,
        metavar="N",
        help="tokens that are drafted per step; 0 = off (default 1 with MTP, 3 with a draft model, else 0)",
    )
    cost.add_argument(
        "--draft-model",
        metavar="NAME",
        help="separate draft model: kimi-k2-eagle3, qwen3-235b-eagle3, or a folder with its config.json",
    )
    cost.add_argument(
        "--acceptance",
        type=_shares,
        metavar="SHARE",
        help="share of drafts that are accepted, or by position: 0.85,0.6 (default 0.7)",
    )
    half = cost.add_mutually_exclusive_group()
    half.add_argument("--no-microbatch", dest="microbatch", action="store_false", help="never half batches")
    half.add_argument(
        "--microbatch", dest="microbatch", action="store_true", help="always two overlapping half batches (decode)"
    )


def _add_division(cost: argparse.ArgumentParser) -> None:
    cost.add_argument(
        "--attention-tp",
        type=int,
        metavar="N",
        help="dies that share their sequences, each with its part of the heads and of dense layers (default 1)",
    )
    cost.add_argument(
        "--head-tp", type=int, metavar="N", help="dies that share the LM head, each with its part (default 1)"
    )
    cost.add_argument(
        "--expert-dies",
        type=int,
        metavar="N",
        help="decode: dies of the instance that hold experts only, others attention (default 0: all do both)",
    )
    cost.add_argument(
        "--domains",
        type=int,
        metavar="N",
        help="with --expert-dies: groups of attention dies that take turns at the experts (default 3)",
    )
    cost.add_argument(
        "--expert-tp",
        type=int,
        metavar="N",
        help="dies that share experts, each with a part of each (default 1)",
    )
    cost.add_argument(
        "--redundant",
        type=int,
        metavar="N",
        help="copies of experts beyond one of each in the instance (default: that of the device file)",
    )
    cost.add_argument(
        "--prefill-attention",
        choices=[layout for layout in get_args(PrefillLayout) if layout != "device"],
        help="prefill: how dies share prompts, where --attention-tp is 1 (default: that of the device file)",
    )


def _shares(text: str) -> float | tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 0.7 or a list such as 0.85,0.6") from None
    return shares if len(shares) > 1 else shares[0]


def run(arguments: argparse.Namespace) -> int:
    """Print the requested prediction.

    Raises: ConfigError, SpecError in one line.
    """
    from serving.cli.cost_answer import answer

    return answer(arguments)
