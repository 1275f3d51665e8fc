#!/usr/bin/env bash
# From nothing to an answer: installs what is missing, builds the daemon, starts it, and asks SmolLM2-135M (trained to
# 8192 tokens) a question about a document of more than 12,000 tokens. Says what it does; may be run again.
#
#   deploy/quickstart.sh [QUESTION]
#   POLICY=streaming deploy/quickstart.sh    the same, but seeing the first and last tokens only
#
# Also from the environment: DOCUMENT_BYTES (60000), METRICS (127.0.0.1:9464), LONGSHORE_CACHE (~/.cache/longshore).
set -euo pipefail
source "$(dirname "$0")/lib.sh"

QUESTION="${1:-On which day did the first edition of this book come out?}"
POLICY="${POLICY:-standard}"
LOG="$LONGSHORE_CACHE/longshored.log"
PID_FILE="$LONGSHORE_CACHE/longshored.pid"
METRICS="${METRICS:-127.0.0.1:9464}"
SECONDS=0

install_packages "${BUILD_PACKAGES[@]}" "${PYTHON_PACKAGES[@]}"
mkdir -p "$LONGSHORE_CACHE"

say "Building longshored (about three minutes the first time)"
build release -DLONGSHORE_CLIENT=OFF -DLONGSHORE_CUDA=OFF -DLONGSHORE_TESTS=OFF -DLONGSHORE_BENCH=OFF
make_venv
get_model
get_document

say "Starting the daemon"
SOCKET="$("$VENV/bin/python" -c 'from longshore import connection; print(connection.default_target())')"
SOCKET="${SOCKET#unix:}"
stop_daemon "$PID_FILE"
start_daemon "$SOCKET" "$LOG" --pool-bytes=4GiB --metrics-listen="$METRICS"
echo "$DAEMON_PID" >"$PID_FILE"
disown "$DAEMON_PID"
cat "$LOG"

head -c "${DOCUMENT_BYTES:-60000}" "$DOCUMENT" >"$LONGSHORE_CACHE/document.txt"
say "Asking about $LONGSHORE_CACHE/document.txt (the Debian handbook's first $(wc -w <"$LONGSHORE_CACHE/document.txt") words)"
"$VENV/bin/python" -m longshore.run --model "$MODEL" \
  --target "unix:$SOCKET" --policy "$POLICY" \
  --prompt-file "$LONGSHORE_CACHE/document.txt" --ask "$QUESTION" --max-tokens 60 >"$LONGSHORE_CACHE/answer.txt"
printf '\nQuestion: %s\nAnswer:   %s\n\n' "$QUESTION" "$(cat "$LONGSHORE_CACHE/answer.txt")"
python3 "$LONGSHORE_ROOT/deploy/where.py" "$LONGSHORE_CACHE/document.txt" "$LONGSHORE_CACHE/answer.txt"

say "What the daemon counted (http://$METRICS/metrics)"
"$VENV/bin/python" - "$METRICS" <<'PY'
import sys, urllib.request
text = urllib.request.urlopen(f"http://{sys.argv[1]}/metrics").read().decode()
wanted = ("longshore_mask_cache", "longshore_query_blocks", "longshore_tokens_appended", "longshore_pool_bytes")
for line in sorted(text.splitlines()):
    if line.startswith(wanted) and not line.endswith(" 0"):
        print(" ", line)
PY

say "Done in $SECONDS s"
echo "The daemon goes on at unix:$SOCKET; its log is $LOG."
echo "Ask again:  deploy/quickstart.sh \"YOUR QUESTION\""
echo "In Python:  $VENV/bin/python   (the README's example as it stands)"
echo "Stop it:    kill $DAEMON_PID"
