"""A chat server around a real model: a tiny Llama of random weights, a tokenizer and a chat template.

`transformers serve` needs FastAPI and uvicorn, which the tests do not have; model, tokenizer, template and
counts of tokens are those of transformers here too, behind the sockets of `CompletionsServer`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from fakes.completions_server import CompletionsServer, send_event
from gpuproof.worker.serving.prompts import WORDS
from gpuproof.workloads.torch.torchvision_models import declare_missing_operators

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|> {{ message['content'] }} <|end|>{% endfor %}"
    "<|assistant|>"
)
MARKS = ["<|user|>", "<|assistant|>", "<|end|>"]
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


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
    )
    return _transformers().LlamaForCausalLM(config)


@dataclass
class LlamaServer(CompletionsServer):
    """Generates greedily from a key-value cache, a chunk a token."""

    paths: tuple[str, ...] = ("/v1/chat/completions",)
    tokenizer: Any = field(default_factory=make_tokenizer)
    model: Any = field(init=False)

    def __post_init__(self) -> None:
        """Make the model of the tokenizer's size."""
        self.model = make_model(len(self.tokenizer))

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, Any], num_tokens: int) -> bool:
        text = self.tokenizer.apply_chat_template(body["messages"], tokenize=False)
        ids = self.tokenizer(text, return_tensors="pt")["input_ids"]
        writer.write(STREAM)
        send_event(writer, json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        cache, step = None, ids
        for _ in range(num_tokens):
            with torch.inference_mode():
                output = self.model(input_ids=step, past_key_values=cache, use_cache=True)
            cache, step = output.past_key_values, output.logits[:, -1:].argmax(-1)
            content = self.tokenizer.decode(step[0]) or "?"
            send_event(writer, json.dumps({"choices": [{"delta": {"content": content}}]}))
            await writer.drain()
        usage = {"prompt_tokens": ids.shape[1], "completion_tokens": num_tokens}
        send_event(writer, json.dumps({"choices": [{"delta": {}, "finish_reason": "length"}]}))
        send_event(writer, json.dumps({"choices": [], "usage": usage}))
        send_event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True
