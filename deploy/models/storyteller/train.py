"""Train the storyteller from scratch on a CPU, with a time budget.

The learning rate follows the used share of the time budget, not a step count: the run ends at the planned time
whatever the load of the machine. Stop it at any moment (Ctrl-C, SIGTERM) and continue with --resume.

    python train.py --minutes 80 --state /tmp/storyteller-run
    python train.py --minutes 30 --state /tmp/storyteller-run --resume            # continue a stopped run
    python train.py --minutes 60 --state /tmp/storyteller-run --resume --restart-at 0.4   # train a finished run further
    python train.py --minutes 60 --state /tmp/storyteller-new --start-from . --lr-muon 0.01 --lr-adam 0.0015
    python export.py --state /tmp/storyteller-run && python evaluate.py
"""

import argparse
import json
import signal
import statistics
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from corpus import load_corpus
from export import load_exported
from fast_ops import keep_freed_memory
from model import MoE, Shape, Storyteller
from muon import make_optimizers
from stream import Stream, batch_tokens, held_out_windows
from tokenizers import Tokenizer
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
WARM_UP = 0.01  # share of the run
HOLD_UNTIL = 0.35  # then the learning rate decays linearly to zero
BALANCE_LOSS = 1e-3
BIAS_SPEED = 2e-3  # change of a router's bias per step, towards equal load


def rate(progress: float) -> float:
    """Learning-rate factor at `progress` in [0, 1]."""
    if progress < WARM_UP:
        return max(0.02, progress / WARM_UP)
    return min(1.0, (1.0 - progress) / (1.0 - HOLD_UNTIL))


def mtp_weight(progress: float) -> float:
    """Weight of the MTP loss: DeepSeek's 0.3, then 0.1."""
    return 0.3 if progress < 0.7 else 0.1


class Clock:
    """Progress in [0, 1], steered so that it reaches 1 at the deadline.

    A gap in which the process did not run (stopped, or starved) adds no progress; the remaining progress is spread
    over the remaining time.
    """

    def __init__(self, minutes: float, progress: float) -> None:
        self.progress = progress
        self.last = time.time()
        self.deadline = self.last + 60 * minutes
        self.steps: deque[float] = deque(maxlen=50)

    def tick(self) -> None:
        """Call once per step. Effects: updates `progress`."""
        now = time.time()
        took, self.last = now - self.last, now
        if self.steps:
            took = min(took, 3 * statistics.median(self.steps))
        self.steps.append(took)
        left = self.deadline - now
        self.progress = 1.0 if left <= 0 else self.progress + (1.0 - self.progress) * min(1.0, took / (left + took))

    @property
    def done(self) -> bool:
        """Whether the next step would end after the deadline."""
        return self.progress >= 1.0 or self.deadline - time.time() < statistics.median(self.steps or [0.0])


def balance_routers(model: Storyteller, progress: float) -> float:
    """Move each router's bias towards equal load (DeepSeek's loss-free balancing), except in the last tenth.

    Returns: the largest load of any expert over the mean. Effects: changes biases, clears the load counters.
    """
    worst = 1.0
    for layer in model.model.layers:
        if isinstance(layer.mlp, MoE):
            gate = layer.mlp.gate
            worst = max(worst, float(gate.load.max() / gate.load.mean().clamp(min=1)))
            if progress < 0.9:
                gate.e_score_correction_bias += BIAS_SPEED * torch.sign(gate.load.mean() - gate.load)
            gate.load.zero_()
    return worst


@torch.no_grad()
def validate(model: Storyteller, windows: torch.Tensor) -> tuple[float, float]:
    """Mean next-token and MTP losses [nat per token] on held-out windows."""
    model.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        main, mtp, _ = model.losses(windows, 0.0, 0.0)
    model.train()
    return float(main), float(mtp)


def plot(history: list[dict[str, float]], path: Path) -> None:
    """Loss over training tokens as a PNG. Effects: writes `path`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    million = [row["tokens"] / 1e6 for row in history]
    axes.plot(million, [row["loss"] for row in history], lw=0.8, alpha=0.8, label="training, next token")
    axes.plot(million, [row["mtp"] for row in history], lw=0.8, alpha=0.5, label="training, MTP")
    checked = [row for row in history if "val" in row]
    at = [row["tokens"] / 1e6 for row in checked]
    axes.plot(at, [row["val"] for row in checked], "ko-", ms=3, label="held-out stories")
    axes.plot(at, [row["val_book"] for row in checked], "k^:", ms=3, label="held-out book")
    axes.set(xlabel="training tokens [million]", ylabel="cross-entropy [nat per token]", ylim=(1, 6))
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


class Run:
    """One training run: model, optimizers, data and history, saved and restored as one file."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.model = Storyteller(Shape(), seed=args.seed).train()
        self.optimizers = make_optimizers(self.model, args.lr_muon, args.lr_adam)
        self.base_rates = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.history: list[dict[str, float]] = []
        self.step = self.tokens = 0
        progress = self.restore() if args.resume else 0.0
        if args.start_from is not None:
            self.model.load_state_dict(load_exported(args.start_from).state_dict())
        self.clock = Clock(args.minutes, progress if args.restart_at is None else args.restart_at)
        tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
        corpus = load_corpus(args.data)
        self.stream = Stream(corpus, tokenizer, args.seed + self.step)
        self.held_stories = held_out_windows(tokenizer, corpus.held_out_stories, 512, 24)
        self.held_book = held_out_windows(tokenizer, corpus.held_out_book, 512, 12)
        torch.manual_seed(args.seed + self.step)

    @property
    def state_file(self) -> Path:
        """Path of the saved state."""
        return self.args.state / "state.pt"

    def save(self) -> None:
        """Write the state file atomically, then the plot and the history next to it."""
        state: dict[str, Any] = {
            "shape": asdict(self.model.shape),
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "progress": self.clock.progress,
            "step": self.step,
            "tokens": self.tokens,
            "history": self.history,
            "drawn": self.stream.drawn,
        }
        part = self.state_file.with_suffix(".part")
        torch.save(state, part)
        part.replace(self.state_file)
        (self.args.state / "history.json").write_text(json.dumps(self.history))
        plot(self.history, self.args.state / "loss.png")

    def restore(self) -> float:
        """Read the state file. Returns: the progress at which it was saved. Raises: FileNotFoundError without one."""
        state = torch.load(self.state_file, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.history, self.step, self.tokens = state["history"], state["step"], state["tokens"]
        return float(state["progress"])

    def one_step(self) -> dict[str, float]:
        """Forward, backward, update. Returns: this step's figures. Effects: advances the training state by one step."""
        progress = self.clock.progress
        windows = self.stream.batch(progress)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            main, mtp, balance = self.model.losses(windows, self.args.drop, BALANCE_LOSS)
        (main + mtp_weight(progress) * mtp + balance).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, rates in zip(self.optimizers, self.base_rates, strict=True):
            for group, base in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = base * rate(progress)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        worst = balance_routers(self.model, progress)
        self.step += 1
        self.tokens += windows.shape[0] * (windows.shape[1] - 2)
        self.clock.tick()
        return {
            "tokens": self.tokens,
            "loss": main.item(),
            "mtp": mtp.item(),
            "worst_load": worst,
            "progress": self.clock.progress,
        }

    def check(self, row: dict[str, float]) -> None:
        """Validate and save. Effects: adds held-out losses to `row`, writes files, prints a line."""
        row["val"], row["val_mtp"] = validate(self.model, self.held_stories)
        row["val_book"], _ = validate(self.model, self.held_book)
        self.save()
        tqdm.write(
            f"{time.strftime('%H:%M:%S')} step {self.step} tokens {self.tokens / 1e6:.2f}M "
            f"progress {row['progress']:.3f} loss {row['loss']:.3f} held-out {row['val']:.3f} "
            f"mtp {row['val_mtp']:.3f} book {row['val_book']:.3f} load {row['worst_load']:.2f}"
        )

    def train(self) -> None:
        """Run until the deadline or a signal; saves every `--save-minutes` and at the end."""
        stopped: list[int] = []
        for wanted in (signal.SIGINT, signal.SIGTERM):
            signal.signal(wanted, lambda number, frame: stopped.append(number))
        saved, row = time.time(), {}
        bar = tqdm(total=100, unit="%", mininterval=20, bar_format="{l_bar}{bar:30}| {elapsed} {postfix}")
        bar.update(100 * self.clock.progress)
        while not self.clock.done and not stopped:
            row = self.one_step()
            self.history.append(row)
            speed = batch_tokens(self.clock.progress) / statistics.median(self.clock.steps)
            bar.set_postfix_str(f"loss {row['loss']:.3f} mtp {row['mtp']:.3f} {speed:.0f} tok/s", refresh=False)
            bar.update(100 * self.clock.progress - bar.n)
            if time.time() - saved > 60 * self.args.save_minutes or self.step == 20:
                self.check(row)
                saved = time.time()
        self.check(row)
        bar.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data",
        type=Path,
        default=HERE.parents[3] / "shared" / "data" / "text",
        help="folder with tinystories/ and gutenberg_children/ (default: %(default)s)",
    )
    parser.add_argument("--state", type=Path, required=True, help="folder for checkpoints, outside the repository")
    parser.add_argument("--minutes", type=float, default=80, help="wall clock; the rate is zero at its end")
    parser.add_argument("--resume", action="store_true", help="continue from the state folder")
    parser.add_argument("--restart-at", type=float, help="with --resume: set progress back (raises the rate again)")
    parser.add_argument(
        "--start-from",
        type=Path,
        help="exported folder to begin with, where its state folder is lost (try lower rates)",
    )
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="for weights, order and dropout (default: %(default)s)")
    parser.add_argument("--lr-muon", type=float, default=0.02, help="peak rate of matrices (default: %(default)s)")
    parser.add_argument("--lr-adam", type=float, default=3e-3, help="peak rate of the rest (default: %(default)s)")
    parser.add_argument(
        "--drop",
        type=float,
        default=0.0,
        help="channel dropout; try 0.1 where stories are read over ten times (default: %(default)s)",
    )
    parser.add_argument("--save-minutes", type=float, default=5, help="between checkpoints (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    args.state.mkdir(parents=True, exist_ok=True)
    Run(args).train()


if __name__ == "__main__":
    main()
