#!/usr/bin/env python3
"""CUDA C++ of ours as C++ for the emulator: dynamic shared memory becomes a pointer.

  translate.py FROM.cu TO.cc
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\S+) (\w+)\[\];")


def translate(text: str) -> str:
    if "<<<" in text:
        raise SystemExit("a launch past launch.cuh")
    return SHARED.sub(r"\1* const \2 = reinterpret_cast<\1*>(emulator::SharedMemory());", text)


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f'#include "tests/cuda_emulator/cuda_words.h"\n#line 1 "{source}"\n' + translate(source.read_text()))


if __name__ == "__main__":
    main()
