"""Takes what tests/gpu.sh left in a folder into results/: one file a benchmark.

    python3 tests/bench/record_gpu.py FOLDER --commit COMMIT --driver DRIVER
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import record

FILES = {
    "cuda_decode_bench": "cuda_decode",
    "cuda_prefill_bench": "cuda_prefill",
    "cuda_token_bench": "cuda_token",
    "sdpa": "cuda_dense",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--device", default="NVIDIA H200")
    parser.add_argument("--driver", required=True)
    options = parser.parse_args()
    for program, file in FILES.items():
        for line in (options.folder / f"{program}.jsonl").read_text().splitlines():
            entry = json.loads(line)
            if "error" in entry:  # a backend of PyTorch that does not take these shapes
                continue
            record.record(
                f"{file}.jsonl",
                **entry,
                device=f"{options.device}, driver {options.driver}, CUDA 13.0",
                commit=options.commit,
                command=f"tests/gpu.sh ({program})",
            )


if __name__ == "__main__":
    main()
