#!/usr/bin/env python3
"""CUDA C++ of ours as C++ for the emulator: launches become calls, dynamic shared memory a pointer.

  translate.py FROM.cu TO.cc
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# kernel<<<grid, threads, shared bytes, stream>>>(arguments)
LAUNCH = re.compile(r"([\w:]+(?:<[^;{}]*?>)?)<<<([^;]*?)>>>\(")
# (void)cudaLaunchKernelEx(&config, kernel, launch) is a template of cuda_words.h.
SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\S+) (\w+)\[\];")


def split_arguments(text: str) -> list[str]:
    """At commas that no bracket encloses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def launch_call(found: re.Match[str]) -> str:
    kernel = found.group(1)
    grid, threads, shared, _ = split_arguments(found.group(2))
    config = f"{{.gridDim = dim3({grid}), .blockDim = dim3({threads}), .dynamicSmemBytes = size_t({shared})}}"
    name = kernel.split("<")[0]
    return f'(void)EmulatedLaunch("{name}", cudaLaunchConfig_t{config}, {kernel}, '


def translate(text: str) -> str:
    text = LAUNCH.sub(launch_call, text)
    if "<<<" in text:
        raise SystemExit("a launch that this does not know")
    return SHARED.sub(r"\1* const \2 = reinterpret_cast<\1*>(emulator::SharedMemory());", text)


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f'#include "tests/cuda_emulator/cuda_words.h"\n#line 1 "{source}"\n' + translate(source.read_text()))


if __name__ == "__main__":
    main()
