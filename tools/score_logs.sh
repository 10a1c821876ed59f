#!/bin/sh
# Score `explain` against the open logs with answers; extra arguments go to score.py. Usage: tools/score_logs.sh [--verbose]
# PYTHON: the interpreter of an environment with this project's dependencies (default: python3).
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
export PYTHONPATH="$here"
exec "$python" "$here/../shared/logs/score.py" \
    --command "$python -m pytest_startup.cli explain --json" \
    --min facts_precision=0.99,facts_recall=0.98,ready=1.0,reuse=0.95,phase=1.0,cause=1.0,clean=1.0 "$@"
