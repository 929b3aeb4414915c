"""`cloudmatrix evaluate`: quality of a model, and its distance from a reference, on held-out text and local tasks."""

import argparse
from pathlib import Path

from serving.cli.options import folder_of

DESCRIPTION = """\
Measure a model on held-out text and on multiple-choice tasks, alone or against a reference (usually the unquantised
model). All inputs are local files; no server is started.
"""
EPILOG = """\
examples:
  cloudmatrix evaluate --model DIR --text held-out.jsonl
      Perplexity. A .jsonl file holds a document per line, {"text": "..."}; any other file is one document.
  cloudmatrix evaluate --model DIR-int8 --reference DIR --text held-out.jsonl --json report.json
      What quantisation costs: the ratio of perplexities, KL divergence, how often both find the same token likeliest.
  cloudmatrix evaluate --model DIR --reference DIR --kv-dtype int8 --text held-out.jsonl
      The same for a KV cache in int8.
  cloudmatrix evaluate --model DIR --tasks tasks/ --limit 200
      Multiple-choice tasks in the form of the lm-evaluation-harness (YAML files), with data from local JSONL files:
        task: animals
        dataset_path: json
        dataset_kwargs: {data_files: {test: animals.jsonl}}
        output_type: multiple_choice
        test_split: test
        doc_to_text: "Q: {{question}}\\nA:"
        doc_to_choice: "{{choices}}"
        doc_to_target: "{{answer}}"

Intervals in brackets hold the figure of 95 in 100 texts of this kind (bootstrap over blocks of 256 tokens); those of
tasks are standard errors.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    _add_what(parser)
    _add_how(parser)


def _add_what(evaluate: argparse.ArgumentParser) -> None:
    hub = "or org/name[@revision] of the Hugging Face Hub"
    model_help = f"checkpoint folder to measure, {hub}"
    evaluate.add_argument("--model", required=True, metavar="MODEL", help=model_help)
    evaluate.add_argument("--reference", metavar="MODEL", help=f"checkpoint folder to compare it with, {hub}")
    evaluate.add_argument("--text", type=Path, nargs="+", default=[], metavar="FILE", help="held-out text")
    evaluate.add_argument(
        "--tasks", type=Path, nargs="+", default=[], metavar="PATH", help="task files, or folders of them"
    )
    evaluate.add_argument("--json", type=Path, metavar="OUT", help="also write all figures into this file")
    evaluate.add_argument(
        "--limit", type=int, metavar="N", help="only the first N documents of each text and questions of each task"
    )
    evaluate.add_argument("--max-tokens", type=int, metavar="N", help="only the first N tokens of each text")


def _add_how(evaluate: argparse.ArgumentParser) -> None:
    evaluate.add_argument(
        "--context", type=int, metavar="TOKENS", help="longest piece of text fed (default 2048, or the model's own)"
    )
    evaluate.add_argument(
        "--stride",
        type=int,
        metavar="TOKENS",
        help="distance between the starts of two windows (default: the context; less = more preceding context)",
    )
    evaluate.add_argument(
        "--chunk",
        type=int,
        default=0,
        metavar="TOKENS",
        help="feed so many tokens of a sequence per pass; 1 to 4 take the way of decode (default 0: all at once)",
    )
    evaluate.add_argument("--batch", type=int, default=8, metavar="N", help="sequences fed together (default 8)")
    evaluate.add_argument(
        "--num-fewshot", type=int, metavar="N", help="solved examples before each question, instead of the task's"
    )
    dtypes = ("auto", "float32", "bfloat16")
    evaluate.add_argument("--dtype", choices=dtypes, default="auto", help="to compute in (default: the checkpoint's)")
    evaluate.add_argument("--reference-dtype", choices=dtypes, default="auto", help="the same, of the reference")
    evaluate.add_argument(
        "--kv-dtype", choices=("auto", "int8"), default="auto", help="of the model's KV cache; the reference keeps auto"
    )
    evaluate.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    evaluate.add_argument("--threads", type=int, metavar="N", help="compute threads (default: torch's choice)")
    evaluate.add_argument("--quiet", action="store_true", help="no progress")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate.

    Raises: ConfigError, ModelError, EngineError in one line.
    """
    arguments.model = folder_of(arguments.model)
    if arguments.reference is not None:
        arguments.reference = folder_of(arguments.reference)
    from serving.tools.evaluate.evaluation import evaluate

    return evaluate(arguments)
