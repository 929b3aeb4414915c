"""Write a training state as a Hugging Face checkpoint in this folder, and prove that transformers reads the same model.

The check runs the written files through `DeepseekV3ForCausalLM` in float32 and compares logits with the training
model on the same (bfloat16-rounded) weights; a difference of 1e-3 or more is an error and leaves no checkpoint.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from model import Shape, Storyteller
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

HERE = Path(__file__).resolve().parent
TOLERANCE = 1e-3
CHECK_TEXT = "<|begin|><|user|>Tell me a story about a dog and a ball.<|end|><|assistant|>Once upon a time, "
FIXED_CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "ep_size": 1,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "moe_layer_freq": 1,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 1,
    "rope_interleave": True,
    "rope_scaling": None,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": True,
    "topk_method": "noaux_tc",
    "use_cache": True,
}


def config(shape: Shape, tokenizer: Tokenizer) -> dict[str, Any]:
    """The config.json of `shape`, keys as in DeepSeek's own checkpoints."""
    ids = {"bos_token_id": "<|begin|>", "eos_token_id": "<|end|>", "pad_token_id": "<|pad|>"}
    special = {key: tokenizer.token_to_id(token) for key, token in ids.items()}
    return FIXED_CONFIG | asdict(shape) | special | {"num_key_value_heads": shape.num_attention_heads}


def weights(model: Storyteller) -> dict[str, Tensor]:
    """Checkpoint tensors: bfloat16, router biases float32 as in DeepSeek's. Embedding and head are one tensor."""
    return {
        name: (tensor.float() if name.endswith("e_score_correction_bias") else tensor.bfloat16()).contiguous()
        for name, tensor in model.state_dict().items()
    }


def load_exported(folder: Path) -> Storyteller:
    """The training model with a folder's weights, float32, ready for inference. Raises: FileNotFoundError."""
    saved = json.loads((folder / "config.json").read_text())
    model = Storyteller(Shape(**{key: saved[key] for key in asdict(Shape())}))
    model.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
    return model.eval()


@torch.no_grad()
def differences(folder: Path, length: int = 1500) -> tuple[float, float]:
    """Largest absolute differences between transformers' logits and ours over `length` random tokens, float32.

    Returns: for the main model, and for the MTP layer.
    Effects: transformers' logging is turned down, since it calls the MTP layer an unexpected weight.
    """
    from transformers import AutoModelForCausalLM
    from transformers.modeling_layers import MtpModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    # It assumes DeepSeek's own MTP layer (layer 61) and checks only that.
    theirs._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{theirs.config.num_hidden_layers}\..*"]
    their_mtp = MtpModel.from_pretrained(theirs).float().eval()
    ours = load_exported(folder)
    prompt = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(CHECK_TEXT, add_special_tokens=False).ids
    torch.manual_seed(0)
    ids = torch.tensor([prompt + torch.randint(6, ours.shape.vocab_size, (length - len(prompt),)).tolist()])
    hidden, their_hidden = ours.hidden(ids), theirs.model(ids).last_hidden_state
    main = theirs.lm_head(their_hidden) - ours.logits(hidden)
    positions = torch.arange(1, length)[None]
    drafted = their_mtp.forward_layer(0, their_hidden[:, :-1], positions, None, input_ids=ids[:, 1:])
    mtp = theirs.lm_head(drafted) - ours.logits(ours.mtp_hidden(ids[:, 1:], hidden[:, :-1]))
    return float(main.abs().max()), float(mtp.abs().max())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, required=True, help="folder that train.py saved into")
    parser.add_argument("--out", type=Path, default=HERE, help="model folder; must hold tokenizer.json")
    args = parser.parse_args()
    state = torch.load(args.state / "state.pt", weights_only=True)
    model = Storyteller(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    (args.out / "config.json").write_text(json.dumps(config(model.shape, tokenizer), indent=2, sort_keys=True) + "\n")
    part = args.out / "model.safetensors.part"
    save_file(weights(model), part, metadata={"format": "pt"})
    part.chmod(0o644)
    part.replace(args.out / "model.safetensors")
    if (args.state / "loss.png").exists():
        (args.out / "loss.png").write_bytes((args.state / "loss.png").read_bytes())
    main_diff, mtp_diff = differences(args.out)
    worst = max(main_diff, mtp_diff)
    if not worst < TOLERANCE:
        (args.out / "model.safetensors").unlink()
        raise SystemExit(f"transformers disagrees by {worst:.2e} (allowed {TOLERANCE}); the checkpoint was removed")
    size = sum(f.stat().st_size for f in args.out.iterdir() if f.is_file())
    count = sum(p.numel() for p in model.parameters())
    print(
        f"{count / 1e6:.2f} M parameters, {state['tokens'] / 1e6:.1f} M tokens, progress {state['progress']:.2f}; "
        f"logits equal within {main_diff:.1e}, MTP {mtp_diff:.1e}; folder {size / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    main()
