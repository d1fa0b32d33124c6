# What the scripts that test one command from outside share. To be read with `.`, `command` set to the command's name:
# a folder of one's own to work in, `check`, `says` and `holds`, and `finish`. It is no test itself.
set -u
exec </dev/null
program=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
failures=0
checks=0

problem() {
	failures=$((failures + 1))
	echo "FAILED: $*" >&2
	sed 's/^/  stderr: /' err >&2
}

# What more must hold after every check; it is given the command's arguments.
afterwards() {
	:
}

# check CODE PATTERN ARGUMENTS...: the exit code, and a pattern (empty: silence) that stderr must match.
check() {
	code=$1 pattern=$2
	shift 2
	checks=$((checks + 1))
	timeout -k 5 120 "$program" $command "$@" >out 2>err
	got=$?
	[ "$got" = "$code" ] || problem "exit code $got, not $code: $*"
	if [ -z "$pattern" ]; then
		[ ! -s err ] || problem "not silent: $*"
	else
		grep -q -- "$pattern" err || problem "no '$pattern': $*"
	fi
	afterwards "$@"
}

# says PATTERN: what stdout of the last check must match.
says() {
	checks=$((checks + 1))
	grep -q -- "$1" out || problem "stdout has no '$1': $(head -40 out)"
}

# holds EXPRESSION: what must be true in Python of the JSON that the last check printed, j, and of what the script has in
# $given.
holds() {
	checks=$((checks + 1))
	python3 -S -c "
import json
j = json.load(open('out'))
${given:-}
assert $1" 2>trace && return
	tail -1 trace >err
	problem "not so: $1"
}

finish() {
	echo "$checks checks, $failures failures"
	[ "$failures" -eq 0 ]
}
