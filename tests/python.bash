# Runs a test that is written in Python, with nothing to read; it counts as skipped where there is no Python. The first
# argument is the test, the second the program.
command -v python3 >/dev/null || { echo "python3 is needed for this test" >&2; exit 77; }
exec python3 "$1" "$(realpath "$2")" "${@:3}" </dev/null
