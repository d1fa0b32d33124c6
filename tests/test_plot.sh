#!/usr/bin/env bash
# Curves from logs: rosatune plot from outside. The first argument is the program.
# shellcheck source=tests/command.bash
command -v gnuplot >/dev/null || { echo "gnuplot is needed for this test" >&2; exit 77; }
command=plot
. "${0%/*}/command.bash"
mkdir tmp
TMPDIR=$folder/tmp
export TMPDIR

afterwards() {
	[ -z "$(ls -A tmp)" ] || problem "temporary files are left: $*"
	for left in .rosatune*; do
		[ ! -e "$left" ] || problem "$left is left: $*"
	done
}

# has FILE PATTERN
has() {
	checks=$((checks + 1))
	grep -q -- "$2" "$1" || problem "$1 has no '$2'"
}
lacks() {
	checks=$((checks + 1))
	grep -q -- "$2" "$1" && problem "$1 has '$2'"
}

# numbers NAME FROM TO: a log of these steps.
numbers() {
	awk -v from="$2" -v to="$3" 'BEGIN { for (s = from; s <= to; s++) printf \
		"{\"step\": %d, \"loss\": %g, \"rate\": %g, \"tokens\": %d, \"seconds\": %g%s}\n", s, 1 + 9 / s, s / 1000, \
		s * 64, s / 2, s % 10 ? "" : sprintf(", \"valid_loss\": %g", 1.5 + 9 / s) }' >>"$1"
}
numbers one.jsonl 1 50
mkdir "it's {a} folder"
numbers "it's {a} folder/one.jsonl" 1 80
printf '{"accuracy": 0.1}\n{"accuracy": null}\n{"accuracy": 0.9, "grad_norm": 2}' >bare.jsonl

check 0 '' one.jsonl --out a.png
checks=$((checks + 1))
[ "$(head -c 8 a.png | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a ] || problem "a.png is no PNG"
check 0 '' one.jsonl "it's {a} folder/one.jsonl" bare.jsonl --out a.svg --smooth 5 --title "Tom & {Jerry}'s"
has a.svg '<svg'
has a.svg 'one.jsonl, validation'
has a.svg "it's {a} folder/one.jsonl"
has a.svg 'Tom &amp; {Jerry}'
has a.svg 'learning rate'
has a.svg 'accuracy'
has a.svg 'gradient norm'

# Any character may be anywhere in a title or a name, also first; nothing in it is run.
cp one.jsonl "'tis a \"log\".jsonl"
check 0 '' one.jsonl "'tis a \"log\".jsonl" --out a.svg --title "'quoted' \"twice\" \\n \`touch ran\`"
has a.svg "'quoted' \"twice\" \\\\n \`touch ran\`"
has a.svg "'tis a \"log\""
checks=$((checks + 1))
[ ! -e ran ] || problem "a title was run as a command"

# The user's start-up file is not read.
mkdir home
printf 'system "touch ran"\nset terminal dumb\n' >home/.gnuplot
checks=$((checks + 1))
HOME=$folder/home "$program" plot one.jsonl --out a.png >out 2>err || problem "with a ~/.gnuplot"
[ ! -e ran ] || problem "~/.gnuplot was run"

# Far tokens, with their controls.
awk 'BEGIN { for (s = 0; s <= 40; s += 10) printf "{\"step\": %d, \"far_loss\": %g, \"far_random_loss\": 2, \
	\"far_off_loss\": 2.1}\n", s, 2 - s / 100 }' >far.jsonl
check 0 '' far.jsonl --out a.svg
has a.svg 'loss on far tokens'
has a.svg 'far, reading at random'
has a.svg 'far, off'
lacks a.svg '>loss<'

check 0 '' one.jsonl --out a.svg --x tokens --log
has a.svg '>tokens<'
lacks a.svg 'accuracy'
check 0 '' bare.jsonl --out a.svg
lacks a.svg '>loss<'
check 0 '' one.jsonl
has out 'loss'
has out 'one, validation'
check 0 '' one.jsonl --out a.pdf
has a.pdf '%PDF'

# A run that was resumed: the steps that were made twice are drawn once, as they came out at last.
numbers again.jsonl 1 30
awk 'BEGIN { for (s = 21; s <= 40; s++) printf "{\"step\": %d, \"loss\": 77}\n", s }' >>again.jsonl
awk 'BEGIN { for (s = 21; s <= 40; s++) printf "{\"step\": %d, \"loss\": 2}\n", s }' >>again.jsonl
check 0 '' again.jsonl
lacks out '70'

# Lines that are none are counted; one that is being written is not.
{ cat one.jsonl; printf 'oops\n[1]\n\n{"step": 51, "loss": 2}\n{"step": 5'; } >bad.jsonl
check 0 'bad.jsonl: line 51 is not a JSON object; 2 lines were left out' bad.jsonl --out a.png

# A run's folder is its log, named by the folder.
mkdir -p runs/short empty
cp one.jsonl runs/short/log.jsonl
check 0 '' runs/short --out a.svg
has a.svg 'short, validation'
check 1 'empty/log.jsonl: No such file' empty --out b.png

check 1 'no line that is a JSON object' /dev/null --out b.png
echo '{"step": 1}' >empty.jsonl
check 1 'empty.jsonl: no line says "loss"' empty.jsonl --out b.png
check 1 'bare.jsonl: no line says "seconds"' one.jsonl bare.jsonl --x seconds --out b.png
check 1 'missing.jsonl: No such file' missing.jsonl --out b.png
check 1 'must end in .png, .svg or .pdf' one.jsonl --out b.jpeg
check 1 'folder no' one.jsonl --out no/b.png
check 2 'LOG is missing' --out b.png
check 2 'did you mean step' one.jsonl --x setp
mkdir nothing
checks=$((checks + 1))
limit=$(command -v timeout)
PATH=$folder/nothing "$limit" -k 5 60 "$program" plot one.jsonl --out b.png >out 2>err && problem "without gnuplot"
has err 'gnuplot is not installed'
checks=$((checks + 1))
[ ! -e b.png ] || problem "b.png is there"

finish
