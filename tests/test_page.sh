#!/bin/sh
# The page of rosatune serve, in a browser. The first argument is the program.
program=$(realpath "$1")
command -v python3 >/dev/null || { echo "python3 is needed for this test" >&2; exit 77; }
exec python3 "$(dirname "$0")/page_checks.py" "$program" </dev/null
