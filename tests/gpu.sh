#!/usr/bin/env bash
# Every GPU test and benchmark, on a machine that has a GPU: no network, no compiler, no root. What it runs was packed by
# tests/gpu_pack.sh elsewhere.
#
#   tests/gpu.sh [tests] [sanitizers] [benchmarks] [dense]     all where nothing is said
#
# Tables of benchmarks go to $OUT (build/gpu where it is not set), one JSON object a line.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
out="${OUT:-build/gpu}"
mkdir -p "$out"
[ -d .gpu/bin ] || tar -C .gpu -xzf .gpu/programs.tar.gz
export LD_LIBRARY_PATH="$PWD/.gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
shards=$(($(nproc) > 14 ? 14 : $(nproc)))
failures=0

say() { printf '\n== %s\n' "$*"; }
# check NAME COMMAND...: what fails is said and counted.
check() {
  local name=$1
  shift
  if "$@"; then echo "passed: $name"; else echo "FAILED: $name"; failures=$((failures + 1)); fi
}

# measure NAME COMMAND...: what a benchmark prints, into a file and for people.
measure() { "${@:2}" >"$out/$1.jsonl" && cat "$out/$1.jsonl"; }

# sharded PREFIX PROGRAM FILTER: a GoogleTest program in as many processes as there are cores; PREFIX goes before it.
sharded() {
  local prefix=$1 program=$2 filter=$3 index failed=0 pids=()
  for ((index = 0; index < shards; ++index)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$index $prefix ".gpu/bin/$program" "--gtest_filter=$filter" \
      --gtest_brief=1 >"$out/$program.$index.log" 2>&1 &
    pids+=($!)
  done
  for index in "${!pids[@]}"; do
    if ! wait "${pids[$index]}"; then
      failed=1
      grep -B2 -A8 -E 'Failure|=========.*(Invalid|Race|Uninit|Barrier|ERROR SUMMARY: [^0])|FAILED' \
        "$out/$program.$index.log" | head -40
    fi
  done
  grep -h 'PASSED' "$out/$program".*.log | awk '{sum += $4} END {print sum " tests passed"}'
  rm -f "$out/$program".*.log
  return $failed
}

sanitize() {
  sharded "compute-sanitizer --tool $1 --error-exitcode 1 --print-limit 3" conformance_test "$2"
}

# The daemon on the GPU: the wire contract, dense attention against fp64, a whole step, and gone when told.
daemon() {
  local target="unix:$out/longshored.sock" pid failed=0
  .gpu/bin/longshored --backend cuda --listen "$target" --metrics_listen "" --pool_bytes 4GiB >"$out/longshored.log" 2>&1 &
  pid=$!
  for _ in $(seq 100); do
    .gpu/bin/longshorectl info --target "$target" >"$out/info.txt" 2>/dev/null && break
    sleep 0.2
  done
  cat "$out/info.txt"
  grep -q cuda "$out/info.txt" || failed=1
  .gpu/bin/longshorectl conformance --target "$target" >"$out/wire.tap" || failed=1
  grep -E '^not ok|^# ' "$out/wire.tap"
  .gpu/bin/longshorectl verify --target "$target" --policy dense --heads 32 --kv-heads 8 --dtype bf16 --context 4096 \
    --max-error 0.01 || failed=1
  .gpu/bin/longshorectl bench --target "$target" --heads 32 --kv-heads 8 --dtype bf16 --context 65536 || failed=1
  kill -TERM "$pid"
  wait "$pid" || failed=1
  [ "$failed" -eq 0 ] || tail -5 "$out/longshored.log"
  return "$failed"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
steps="${*:-tests sanitizers benchmarks dense}"
for step in $steps; do
  say "$step"
  case $step in
    tests)
      check "conformance on the GPU" sharded "" conformance_test '*cuda*'
      check "engine tests on the GPU" sharded "env LONGSHORE_TEST_BACKEND=cuda" engine_test '*'
      check "the daemon on the GPU" daemon
      ;;
    sanitizers)
      # A part of the cases, of which every kernel has some, and less for the slowest tools.
      few='Storage*cuda*:Rotations*cuda*'
      check memcheck sanitize memcheck "$few:Rankings*cuda*:Sizes*cuda*:WholeBlock*cuda*Bf16"
      check initcheck sanitize initcheck "$few"
      check synccheck sanitize synccheck "$few"
      check racecheck sanitize racecheck 'Storage*cuda*'
      ;;
    benchmarks)
      for bench in cuda_decode_bench cuda_prefill_bench cuda_token_bench; do
        check "$bench" measure "$bench" ".gpu/bin/$bench"
      done
      ;;
    dense)
      check "dense attention of PyTorch" measure sdpa python3 tests/bench/sdpa.py
      ;;
    *) sed -n '2,8p' "$0"; exit 2 ;;
  esac
done
say "$failures failed"
exit $((failures > 0))
