#!/usr/bin/env python3
"""Checks that includes point one way: service -> engine -> backends -> kv -> algo -> core.

Prints every include that breaks a rule and exits 1. Run by ctest; `tests/include_arrows.py [ROOT]`.
"""

import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]')

# Headers of engine/ that are words, not machinery: every layer above core may use them.
WORDS = {"engine/policy.h", "engine/magnitude.h"}
# What a backend may see of the engine: its own interface.
BACKEND_INTERFACE = {"engine/backend.h", "engine/backend_args.h"}

# For files below a folder: the folders and headers of ours that they may include.
ALLOWED = {
    "engine/core/": ["engine/core/"],
    "engine/algo/": ["engine/core/", "engine/algo/", *WORDS],
    "engine/kv/": ["engine/core/", "engine/algo/", "engine/kv/", *WORDS],
    "engine/cpu/": ["engine/core/", "engine/algo/", "engine/kv/", "engine/cpu/", *WORDS, *BACKEND_INTERFACE],
    "engine/cuda/": [
        *("engine/core/", "engine/algo/", "engine/kv/", "engine/cuda/", "engine/cpu/check_inputs.h"),
        *(*WORDS, *BACKEND_INTERFACE),
    ],
    "engine/make_backend.cc": ["engine/"],
    "engine/policy.h": ["engine/core/"],
    "engine/magnitude.h": ["engine/core/"],
    "engine/backend_args.h": ["engine/core/", "engine/algo/", "engine/kv/", *WORDS],
    "engine/": ["engine/core/", "engine/algo/", "engine/kv/", "engine/*.h"],
    "service/": ["service/", "engine/core/", "engine/kv/", "engine/*.h", "longshore/", "google/"],
    # What users of the library see, the library, and the tool, which may also do the engine's arithmetic.
    "client/cpp/include/": ["longshore/client/"],
    "client/cpp/src/": ["client/cpp/src/", "longshore/", "google/"],
    "client/cpp/example/": ["longshore/client/"],
    "client/cpp/ctl/": [
        *("client/cpp/", "longshore/", "google/"),
        *("engine/core/", "engine/algo/", "engine/kv/", "engine/*.h"),
        *("service/convert_model.h", "service/convert_policy.h"),
    ],
    "tests/support/oracle": ["tests/support/oracle"],
}

# engine/ knows no protocol, logger, flag, environment or lock; the thread team is the one exception to locks.
FORBIDDEN_IN_ENGINE = re.compile(
    r"#\s*include\s+[<\"](grpc|google/protobuf|spdlog|prometheus|absl/(log|flags|synchronization)|longshore/v1)"
    r"|\bgetenv\b"
)
LOCKS = re.compile(r"#\s*include\s+<(mutex|shared_mutex|condition_variable)>")
MAY_LOCK = {"engine/cpu/thread_team.h", "engine/cpu/thread_team.cc"}


def rule_for(path: str) -> list[str] | None:
    matches = [prefix for prefix in ALLOWED if path.startswith(prefix)]
    return ALLOWED[max(matches, key=len)] if matches else None


def is_allowed(include: str, rule: list[str]) -> bool:
    for entry in rule:
        if entry.endswith("/*.h"):
            folder = entry[: -len("*.h")]
            if include.startswith(folder) and "/" not in include[len(folder) :]:
                return True
        elif include == entry or (not entry.endswith(".h") and include.startswith(entry)):
            return True
    return False


def check_file(root: pathlib.Path, file: pathlib.Path) -> list[str]:
    path = file.relative_to(root).as_posix()
    rule = rule_for(path)
    problems = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        found = INCLUDE.match(line)
        include = found.group(1) if found else ""
        ours = include.startswith(("engine/", "service/", "client/", "tests/", "longshore/"))
        if ours and rule is not None and not is_allowed(include, rule):
            problems.append(f"{path}:{number}: may not include {include}")
        if path.startswith("engine/") and FORBIDDEN_IN_ENGINE.search(line):
            problems.append(f"{path}:{number}: engine/ may not know this: {line.strip()}")
        if path.startswith("engine/") and path not in MAY_LOCK and LOCKS.search(line):
            problems.append(f"{path}:{number}: only the thread team locks: {line.strip()}")
        if path.endswith((".cu", ".cuh")) and include.startswith("absl/"):
            problems.append(f"{path}:{number}: Abseil does not go through nvcc")
        if include.startswith("cuda") and not path.startswith(("engine/cuda/", "tests/", "service/transport_cuda")):
            problems.append(f"{path}:{number}: CUDA headers stay in engine/cuda/")
    return problems


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    files = [
        file
        for folder in ("engine", "service", "client/cpp", "tests")
        for pattern in ("*.h", "*.cc", "*.cu", "*.cuh")
        for file in sorted((root / folder).rglob(pattern))
    ]
    problems = [problem for file in files for problem in check_file(root, file)]
    print("\n".join(problems) or f"{len(files)} files, every include points down")
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
