"""`transformers serve` with a tiny Llama of random weights, a tokenizer and a chat template.

As `transformers serve FOLDER` is started, but for torchvision's operators, without which transformers'
server cannot be imported on a CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from gpuproof.worker.serving.prompts import WORDS
from gpuproof.workloads.torch.torchvision_models import declare_missing_operators
from ports import free_ports
from waiting import PATIENCE_S, eventually

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|> {{ message['content'] }} <|end|>{% endfor %}"
    "<|assistant|>"
)
MARKS = ["<|user|>", "<|assistant|>", "<|end|>"]
SERVE = """
from gpuproof.workloads.torch.torchvision_models import declare_missing_operators
declare_missing_operators()
from transformers.cli.transformers import main
main()
"""


def _transformers() -> Any:
    declare_missing_operators()  # without which torchvision cannot be imported on a CPU
    import transformers

    return transformers


def make_tokenizer() -> Any:
    """Train a byte-level BPE on the words of prompts, as larger ones know them too."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=400, special_tokens=MARKS, initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([" ".join(WORDS * 50)], trainer)
    return _transformers().PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE)


def make_model(vocab_size: int) -> Any:
    """Make a Llama of random weights, the same each time."""
    torch.manual_seed(0)
    config = _transformers().LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=None,  # every answer has its full length
    )
    return _transformers().LlamaForCausalLM(config)


@contextmanager
def transformers_serve(folder: Path) -> Iterator[str]:
    """Write the model into `folder` and serve it; give the address."""
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_model(len(tokenizer)).save_pretrained(folder)
    port = free_ports()
    words = ("serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
    with (folder / "printed.txt").open("w") as printed:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *words],
            env={**os.environ, **offline, "OMP_NUM_THREADS": "1"},
            stdout=printed,
            stderr=printed,
        )
    url = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        assert process.poll() is None, (folder / "printed.txt").read_text()
        try:
            with urlopen(f"{url}/health", timeout=PATIENCE_S) as answer:
                return bool(answer.status == 200)
        except URLError:
            return False

    try:
        eventually("transformers serve answers", is_up)
        yield f"{url}/v1"
    finally:
        process.kill()
        process.wait()
