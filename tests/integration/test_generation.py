"""Prefill and decode give what the whole forward pass gives, at the work of the closed forms; and runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpuproof.base import registry
from gpuproof.base.errors import ExitCode
from gpuproof.records.run import Setup, Window
from gpuproof.records.what_ran import Compilation
from gpuproof.records.work.data import DataUsed
from gpuproof.worker.data.sources import SamplePool
from gpuproof.worker.step.cuda_graph import Step
from gpuproof.worker.step.decoding import Decoding, bucket_end
from gpuproof.worker.step.generation import DecodeStep
from gpuproof.worker.step.precision import PrecisionPolicy
from gpuproof.workloads.info.base import WorkloadInfo
from gpuproof.workloads.info.catalogue.decoder import decode_flops
from gpuproof.workloads.torch.decoder import NORM_EPSILON, ROTARY_BASE, Decoder
from gpuproof.workloads.torch.generation import Generation
from gpuproof.workloads.torch.torchvision_models import declare_missing_operators
from running import MEASURED, gpuproof, only_case, run_directory

CONFIG = str(Path(__file__).parents[2] / "configs" / "decoder_decode.yaml")

SIZES = {"d_model": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "d_ff": 48, "vocab_size": 50}
MODELS = {
    "decoder": SIZES,
    "decoder without groups": {**SIZES, "num_kv_heads": 4, "tied_embeddings": False},
    "moe_decoder": {**SIZES, "num_experts": 4},
}
BATCH, PROMPT, NEW = 3, 7, 5
FP32 = PrecisionPolicy(name="fp32", device_type="cpu")


def built(name: str, seq_len: int = PROMPT + NEW) -> tuple[Any, Decoder]:
    """Build a model for whole sequences of prompt and new tokens, its scores as large as a trained one's."""
    torch.manual_seed(0)
    info = registry.load(registry.WORKLOADS, name.partition(" ")[0])
    assert isinstance(info, WorkloadInfo)
    options = info.options_type(seq_len=seq_len, **MODELS[name])
    module = info.resolve_implementation()(options, info.input_shape(options, None, None))
    assert isinstance(module, Decoder)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(5.0 if parameter.dim() > 1 else 1.0)
    return options, module.eval()


def tokens_of(num_tokens: int, batch: int = BATCH) -> torch.Tensor:
    return torch.randint(50, (batch, num_tokens), generator=torch.Generator().manual_seed(1))


def scores_with_a_cache(model: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    """Read PROMPT tokens at once and the others one by one; (batch, NEW + 1, vocab_size)."""
    generation = Generation(model, num_slots=BATCH, max_tokens=PROMPT + NEW)
    scores = [generation.prefill(tokens[:, :PROMPT])]
    scores += [generation.decode(tokens[:, place]) for place in range(PROMPT, PROMPT + NEW)]
    return torch.stack(scores, dim=1)


@pytest.mark.parametrize("name", MODELS)
def test_scores_with_a_cache_are_those_of_the_whole_pass(name: str) -> None:
    _, model = built(name)
    tokens = tokens_of(PROMPT + NEW)
    with torch.no_grad():
        whole = model(tokens)[:, PROMPT - 1 :]
    torch.testing.assert_close(scores_with_a_cache(model, tokens), whole, atol=1e-4, rtol=1e-4)
    assert whole.std() > 0.5  # equal scores everywhere would agree too


def test_scores_agree_in_half_precision_as_far_as_it_goes() -> None:
    _, model = built("decoder")
    tokens = tokens_of(PROMPT + NEW)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        whole = model(tokens)[:, PROMPT - 1 :]
        cached = scores_with_a_cache(model, tokens)
    assert cached.dtype == torch.bfloat16
    distance = (cached.float() - whole.float()).norm() / whole.float().norm()
    assert distance < 0.05


def test_a_shuffled_prompt_gives_other_scores() -> None:
    _, model = built("decoder")
    tokens = tokens_of(PROMPT + NEW)
    turned = torch.cat((tokens[:, :PROMPT].flip(1), tokens[:, PROMPT:]), dim=1)
    with torch.no_grad():
        whole = model(tokens)[:, PROMPT - 1 :]
    with pytest.raises(AssertionError):
        torch.testing.assert_close(scores_with_a_cache(model, turned), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_the_closed_forms_agree_with_torch(name: str) -> None:
    options, model = built(name)
    info = registry.load(registry.WORKLOADS, name.partition(" ")[0])
    work = info.generation(options, PROMPT, NEW)
    generation = Generation(model, num_slots=BATCH, max_tokens=PROMPT + NEW)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        scores = generation.prefill(tokens_of(PROMPT))
    assert counter.get_total_flops() == BATCH * work.prefill_flops
    counted = []
    for _ in range(NEW):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            scores = generation.decode(scores.argmax(dim=-1))
        counted.append(counter.get_total_flops())
        assert counted[-1] == BATCH * decode_flops(options.plan, keys=generation.length)
    assert sum(counted) / NEW == BATCH * work.decode_flops
    cached = BATCH * (PROMPT + NEW) * work.cache_elements_per_token
    assert generation.cache.num_bytes == cached * 4
    if work.decode_weights is not None:
        table = 0 if options.plan.tied_embeddings else model.embedding.weight.numel()
        assert work.decode_weights == sum(p.numel() for p in model.parameters()) - table


def test_a_cache_is_allocated_once_and_can_be_rewound() -> None:
    _, model = built("decoder")
    generation = Generation(model, num_slots=BATCH, max_tokens=PROMPT + NEW)
    assert (generation.length, generation.cache.num_bytes) == (0, 0)
    first = generation.prefill(tokens_of(PROMPT)).argmax(dim=-1)
    num_bytes = generation.cache.num_bytes
    once = [generation.decode(first) for _ in range(NEW)][-1]
    generation.rewind(PROMPT)
    again = [generation.decode(first) for _ in range(NEW)][-1]
    assert generation.length == PROMPT + NEW
    torch.testing.assert_close(once, again)
    assert generation.cache.num_bytes == num_bytes
    # A smaller batch takes the first slots, and gives what it would alone.
    few = generation.prefill(tokens_of(PROMPT)[:2])
    alone = Generation(model, num_slots=2, max_tokens=PROMPT).prefill(tokens_of(PROMPT)[:2])
    torch.testing.assert_close(few, alone)
    assert generation.length == PROMPT


def test_what_does_not_fit_is_refused() -> None:
    _, model = built("decoder")
    generation = Generation(model, num_slots=2, max_tokens=PROMPT)
    with pytest.raises(ValueError, match=r"2 slots of 7 tokens: 3 × 7 do not fit after the 0"):
        generation.prefill(tokens_of(PROMPT))
    generation.prefill(tokens_of(PROMPT, batch=2))
    with pytest.raises(ValueError, match="2 × 1 do not fit after the 7"):
        generation.decode(torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="1 tokens cannot continue 2 sequences"):
        generation.decode(torch.zeros(1, dtype=torch.long))
    with pytest.raises(ValueError, match="contains 7 tokens per sequence, not 8"):
        generation.rewind(8)


def test_a_decode_step_adds_a_token_and_goes_back_to_the_prompt() -> None:
    _, model = built("decoder")
    tokens = torch.randint(50, (4, PROMPT + 1))
    used = DataUsed(
        loading="device",
        split=None,
        source=None,
        num_samples=None,
        sha256=None,
        sha256_of=None,
        batches_ahead=0,
    )
    pool = SamplePool(tokens[:, :-1], tokens[:, 1:], 2, used)
    generation = Generation(model, num_slots=2, max_tokens=PROMPT + 3)
    decoding = Decoding(generation, precision=FP32)
    step = DecodeStep(decoding, pool=pool, limit=PROMPT + 3)
    lengths = [generation.length]
    for _ in range(7):
        step()
        lengths.append(generation.length)
    assert lengths == [7, 8, 9, 10, 8, 9, 10, 8]


class StandIn:
    """Notes what is captured, and replays by running it."""

    def __init__(self) -> None:
        self.captured = 0

    def run_aside(self, run: Step) -> None:
        run()

    def capture_graph(self, run: Step) -> Step:
        self.captured += 1
        return run


def greedy(model: Decoder, prompts: torch.Tensor, new: int, capture: StandIn | None) -> torch.Tensor:
    """Return the prompts with `new` tokens behind each, and what the last of them was chosen by."""
    limit = prompts.shape[1] + new - 1
    generation = Generation(model, num_slots=len(prompts), max_tokens=bucket_end(limit) if capture else limit)
    decoding = Decoding(generation, precision=FP32, capture=capture)
    decoding.begin(prompts)
    tokens = [decoding.tokens.clone()]
    while generation.length < limit:
        decoding.step()
        tokens.append(decoding.tokens.clone())
    return torch.cat((prompts, torch.stack(tokens, dim=1)), dim=1)


def assert_most_likely(scores: torch.Tensor, text: torch.Tensor) -> None:
    """See that each token behind the prompts is the best, where the two best differ by more than rounding."""
    best = scores[:, 6:].topk(2, dim=-1)
    clear = best.values[..., 0] - best.values[..., 1] > 1e-4
    assert torch.equal(best.indices[..., 0][clear], text[:, 7:][clear])
    assert clear.float().mean() > 0.9


@pytest.mark.parametrize("name", ["decoder", "decoder without groups"])
def test_tokens_in_buckets_are_those_of_exact_lengths(name: str) -> None:
    _, model = built(name, 134)
    prompts, stand_in = tokens_of(7), StandIn()
    text = greedy(model, prompts, 128, None)
    assert torch.equal(greedy(model, prompts, 128, stand_in), text)
    assert stand_in.captured == 3  # up to places 64, 128 and 192, of which 134 are used
    assert len({tuple(row.tolist()) for row in text[:, 7:]}) == 3  # each sequence has its own text
    with torch.no_grad():
        assert_most_likely(model(text[:, :-1]), text)


def test_tokens_are_those_of_llama_with_the_same_weights() -> None:
    declare_missing_operators()
    import transformers

    options, model = built("decoder")
    plan = options.plan
    sizes: Any = transformers.LlamaConfig
    llama: Any = transformers.LlamaForCausalLM(
        sizes(
            hidden_size=plan.d_model,
            num_hidden_layers=plan.num_layers,
            num_attention_heads=plan.num_heads,
            num_key_value_heads=plan.num_kv_heads,
            intermediate_size=plan.d_ff,
            vocab_size=plan.vocab_size,
            rms_norm_eps=NORM_EPSILON,
            rope_theta=ROTARY_BASE,
            tie_word_embeddings=True,
        )
    )
    llama.eval()
    with torch.no_grad():
        llama.model.embed_tokens.weight.copy_(model.embedding.weight)
        llama.model.norm.weight.copy_(model.norm.weight)
        layers: list[tuple[Any, Any]] = list(zip(model.layers, llama.model.layers, strict=True))
        for ours, theirs in layers:
            attention = theirs.self_attn
            queries, keys, values = ours.attention.queries_keys_values.weight.split(ours.attention.widths)
            gate, up = ours.feed_forward.gate_up.weight.chunk(2)
            pairs = [
                (attention.q_proj, queries),
                (attention.k_proj, keys),
                (attention.v_proj, values),
                (attention.o_proj, ours.attention.output.weight),
                (theirs.mlp.gate_proj, gate),
                (theirs.mlp.up_proj, up),
                (theirs.mlp.down_proj, ours.feed_forward.down.weight),
            ]
            for layer, weight in pairs:
                layer.weight.copy_(weight)
    prompts = tokens_of(7)
    text = greedy(model, prompts, 128, StandIn())
    with torch.no_grad():
        assert_most_likely(llama(text[:, :-1]).logits, text)
    everything = torch.ones_like(prompts)
    endless = {"do_sample": False, "eos_token_id": None, "pad_token_id": 50}
    assert torch.equal(
        llama.generate(prompts, attention_mask=everything, max_new_tokens=128, **endless), text
    )


TINY = (
    *("--data.batch_size=2", "--inference.prompt_tokens=6", "--inference.new_tokens=4", "--run.repeats=1"),
    *("--training.precision=fp32", "--benchmark.warmup_steps=1", "--benchmark.measure_steps=8"),
    *("--monitoring.enabled=false", "--run.run_id=g"),
)
ONE_LAYER = "d_model: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1, d_ff: 64, vocab_size: 50"
WEIGHTS = 3 * 1_024 + 6_144 + 1_600 + 96  # attention, SwiGLU, the shared table, three norms


@pytest.mark.parametrize(
    ("model", "mode", "phase", "item", "items_per_step", "cache_tokens"),
    [
        ("decoder", "throughput", "decode", "generated tokens", 2, 10),
        ("moe_decoder", "latency", "decode", "generated tokens", 2, 10),
        ("decoder", "latency", "prefill", "prompt tokens", 12, 6),
    ],
)
def test_the_shipped_config_runs(
    model: str, mode: str, phase: str, item: str, items_per_step: int, cache_tokens: int, tmp_path: Path
) -> None:
    preset = "preset: 10m" if model == "decoder" else "preset: 29m-a10m, num_experts: 4"
    asked = [f"--model.name={model}", f"--model.options={{{preset}, {ONE_LAYER}}}"]
    result = gpuproof(
        "run", CONFIG, *TINY, *asked, f"--inference.mode={mode}", f"--inference.phase={phase}", cwd=tmp_path
    )
    assert result.returncode in MEASURED, result.stdout + result.stderr
    run = run_directory(tmp_path, "g", "decoder_decode")
    (setup,), (window,) = only_case(run).of(Setup), only_case(run).of(Window)
    assert (setup.item, setup.items_per_step, window.items) == (item, items_per_step, 8 * items_per_step)
    assert window.tokens_before in (range(4) if phase == "decode" else (None,))
    # Two sequences, keys and values of one layer, one head of 16, four bytes each.
    assert setup.kv_cache_bytes == 2 * cache_tokens * 2 * 16 * 4
    assert setup.flops_per_step is not None
    assert setup.flops_per_step_counted is None
    assert setup.flops_not_counted == "the FLOPs of a generation phase are known only from its closed form"
    if (model, phase) == ("decoder", "decode"):
        # 7 to 10 tokens read and one written, of 32 numbers, for two sequences.
        assert setup.bytes_per_step == 4 * (WEIGHTS + 2 * (8.5 + 1) * 32)
    else:
        assert setup.bytes_per_step is None
    summary = json.loads((run.root / "run_summary.json").read_text())
    assert summary["inference"]["mode"] == mode
    assert (summary["inference"]["latency"] is None) == (mode == "throughput")
    assert (summary["throughput_items_per_s"] is None) == (mode == "latency")
    printed = " ".join(result.stdout.split())
    assert f"{item}/s" in printed or mode == "latency"
    assert ("throughput" in printed) == (mode == "throughput")


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_what_works_on_a_cache_is_compiled_without_a_break(phase: str, tmp_path: Path) -> None:
    asked = ("--model.name=decoder", f"--model.options={{preset: 10m, {ONE_LAYER}}}")
    compiling = ("--training.compile.enabled=true", "--training.compile.fullgraph=true")
    words = ("run", CONFIG, *TINY, *asked, *compiling, f"--inference.phase={phase}")
    result = gpuproof(*words, cwd=tmp_path)
    assert result.returncode in MEASURED, result.stdout + result.stderr
    run = run_directory(tmp_path, "g", "decoder_decode")
    (setup,), (compilation,) = only_case(run).of(Setup), only_case(run).of(Compilation)
    assert setup.compiled == "default"
    assert (compilation.graph_breaks, compilation.eager_frames) == ((), 0)
    assert compilation.num_graphs >= 1
    assert compilation.compiled_in_window == 0


def test_a_model_without_a_cache_is_refused_before_anything_runs(tmp_path: Path) -> None:
    result = gpuproof("run", CONFIG, "--model.name=resnet18", "--model.options={}", cwd=tmp_path)
    assert result.returncode == ExitCode.USAGE
    assert "inference.phase: resnet18 has no key-value cache" in " ".join(result.stderr.split())
