"""Dense attention of PyTorch on the GPU, the other side of our ratios: 32/8 heads, 128 dims, bf16.

A piece of a prompt is two calls, all that came before without a mask and the piece with one; what
merging them would cost is left out, to dense attention's advantage.

    python3 tests/bench/sdpa.py            # one JSON object a line
"""

import json
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

HEADS, KV_HEADS, DIMS = 32, 8, 128
PIECE = 32768
CONTEXTS = {"64k": 1 << 16, "128k": 1 << 17, "256k": 1 << 18, "512k": 1 << 19, "1m": 1 << 20, "2m": 1 << 21}
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def tensor(heads: int, rows: int) -> torch.Tensor:
    """Rows as runners have them: [1, heads, rows, dims], heads of a row together."""
    return torch.randn(1, rows, heads, DIMS, device="cuda", dtype=torch.bfloat16).transpose(1, 2)


def median_ms(run, runs: int) -> float:
    """Median of `runs` runs after one."""
    times = []
    for index in range(runs + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run(index)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[1:])


def attend(q, k, v, causal=False):
    """Attention with shared KV heads."""
    return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def prefill_ms(tokens: int, runs: int) -> float:
    """The last piece of a prompt."""
    q = tensor(HEADS, PIECE)
    k, v = tensor(KV_HEADS, tokens), tensor(KV_HEADS, tokens)
    before = tokens - PIECE

    def run(_):
        attend(q, k[:, :, :before], v[:, :, :before])
        attend(q, k[:, :, before:], v[:, :, before:], causal=True)

    return median_ms(run, runs)


def decode_ms(tokens: int, runs: int) -> float:
    """One row, keys and values from copies in turn."""
    q = tensor(HEADS, 1)
    copies = [(tensor(KV_HEADS, tokens), tensor(KV_HEADS, tokens)) for _ in range(4)]
    return median_ms(lambda index: attend(q, *copies[index % 4]), runs)


def main() -> None:
    """Prints what each backend takes."""
    for name, backend in BACKENDS.items():
        for what, measure, unit in (("decode", decode_ms, "us"), ("prefill_32k", prefill_ms, "ms")):
            for at, tokens in CONTEXTS.items():
                if name == "flash" and at not in ("128k", "1m"):
                    continue
                try:
                    with sdpa_kernel(backend), torch.no_grad():
                        value = measure(tokens, 30 if what == "decode" else 3 if tokens < 1 << 19 else 1)
                except RuntimeError as error:
                    print(json.dumps({"id": f"{name}_{what}_{at}", "error": str(error)[:200]}))
                    continue
                print(json.dumps({
                    "id": f"{name}_{what}_{at}", "value": round(value * (1e3 if unit == "us" else 1), 3),
                    "unit": unit, "shapes": f"one layer, 32/8 heads, 128 dims, bf16, {tokens} tokens, "
                    f"torch {torch.__version__}, dense"}), flush=True)


if __name__ == "__main__":
    main()
