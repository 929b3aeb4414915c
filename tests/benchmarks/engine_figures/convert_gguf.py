"""Runs a `convert_hf_to_gguf.py` of llama.cpp or of its fork on a checkpoint of ours.

    PYTHON convert_gguf.py SCRIPT ARGUMENTS-OF-THE-SCRIPT...

The scripts recognise pre-tokenizers by a hash of a published tokenizer's output, and refuse any other. The random
checkpoints' tokenizer splits text as GPT-2's does, so the script gets that name; all else is its own. Needs
torch, transformers and sentencepiece, which an interpreter with vLLM has; imports nothing of this project.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

PRE_TOKENIZER = "gpt-2"
_QUESTION = "get_vocab_base_pre"


def load_script(path: Path) -> ModuleType:
    """The script as a module, with its own folder and that of its `gguf` package first on the path."""
    sys.path[:0] = [str(path.parent), str(path.parent / "gguf-py")]
    spec = importlib.util.spec_from_file_location("convert_hf_to_gguf", path)
    assert spec is not None and spec.loader is not None, f"{path} is no module"  # noqa: PT018 - not a test
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def answer_pre_tokenizer() -> int:
    """Make every converter class use `PRE_TOKENIZER`. Returns: how many; 0 when the script has an unknown structure."""

    def answer(_self: Any, _tokenizer: Any) -> str:
        return PRE_TOKENIZER

    found = {
        value
        for name, module in list(sys.modules.items())
        if name.startswith(("convert_hf_to_gguf", "conversion"))
        for value in vars(module).values()
        if isinstance(value, type) and _QUESTION in vars(value)
    }
    for converter in found:
        setattr(converter, _QUESTION, answer)
    return len(found)


def main() -> None:
    script = Path(sys.argv[1]).resolve()
    module = load_script(script)
    if not answer_pre_tokenizer():
        sys.exit(f"{script}: no converter asks {_QUESTION}")
    sys.argv = [str(script), *sys.argv[2:]]
    module.main()


if __name__ == "__main__":
    main()
