#!/usr/bin/env bash
# `rosatune mqar` from outside: what it prints, in words and in JSON, its log and picture, what it refuses, and Ctrl-C.
# The first argument is the program's path. Networks are as small as can be; that they learn is tested there, too.

# shellcheck disable=SC2015 # problem may follow a failed grep
# shellcheck disable=SC2086 # $tiny is a list of words
# shellcheck source=tests/command.bash
command -v python3 >/dev/null || { echo "python3 is needed for this test" >&2; exit 77; }
command=mqar
. "${0%/*}/command.bash"

# shellcheck disable=SC2034 # command.bash uses it
given="
import os
log = [json.loads(l) for l in open('log.jsonl')] if os.path.exists('log.jsonl') else []
runs = {r['mode']: r for r in j['runs']}"

tiny='--pairs 4 --length 32 --vocabulary 64 --dim 32 --window 4 --layers 1 --examples 320 --held-out 64'

# ------------------------------------------------------------------------------------------------------------ words

check 0 '' $tiny --epochs 3
says '^4 pairs in 32 tokens, a vocabulary of 64; accuracy on 256 values'
says '^  epoch      global      window        rosa$'
says '^      3 '
says 'layer 0: right routes'
says '^note: global attention did not learn the task in these 30 steps'
cp out first
check 0 '' $tiny --epochs 1 --mode rosa
! grep -q '^note' out || problem "a note without global attention"
check 0 '' $tiny --epochs 3 --threads 1
grep -v tokens/s first >a
grep -v tokens/s out >b
cmp -s a b || problem "another number of threads gives other numbers"

# ------------------------------------------------------------------------------------------------------------- JSON

check 0 '' $tiny --epochs 3 --json --log log.jsonl
holds "[r['mode'] for r in j['runs']] == ['global', 'window', 'rosa']"
holds "all([e['epoch'] for e in r['epochs']] == [0, 1, 2, 3] for r in j['runs'])"
holds "runs['rosa']['epochs'][-1]['accuracy'] > 0.95"
holds "runs['window']['epochs'][-1]['accuracy'] < 0.2"
holds "runs['window']['epochs'][0]['layers'] == []"
holds "runs['rosa']['epochs'][0]['layers'][0]['agree'] == 1"
holds "0 < runs['rosa']['epochs'][3]['layers'][0]['query_symbols'] <= 64"
holds "[l['step'] for l in log] == list(range(1, 91))"
holds "[l['stage'] for l in log] == ['global'] * 30 + ['window'] * 30 + ['rosa'] * 30"
holds "log[29]['valid_loss'] == runs['global']['epochs'][3]['loss'] and 'valid_loss' not in log[28]"
holds "log[0]['loss'] > log[89]['loss'] > 0"

# Second names, and names of two tokens: at least they run.
check 0 '' $tiny --epochs 1 --mode rosa --json --rename --qk separate --qk-grad soft --credit route --explore 0.2
holds "runs['rosa']['epochs'][0]['layers'][0]['meets'] < 0.5"
check 0 '' $tiny --epochs 1 --mode rosa --json --pairs 3 --name-tokens 2 --names 6 --suffix 1 --freeze embed --v-start identity
holds "len(j['runs']) == 1"
check 0 '' $tiny --epochs 1 --mode rosa --json --layers 2 --first-global-layers 1 --v-start identity
holds "[l['layer'] for l in runs['rosa']['epochs'][1]['layers']] == [1]"
check 0 '' $tiny --epochs 1 --mode rosa --json --layers 2 --adapter-layers 1 --tied --filler random --fusion pre
holds "[l['layer'] for l in runs['rosa']['epochs'][1]['layers']] == [0, 1]"

# Other sources, with delay and strength: a key is found by its id, and by its embedding's signs, unless it is so near
# that the delay hides it. (Embeddings are small here, hence so many units.)
strong='--delay 4 --gain --gate --units 5 --chain 2 --v-start identity --v-grad straight'
for source in tokens embeddings tokens+own; do
	check 0 '' $tiny --epochs 3 --mode rosa --json --source $source $strong
	holds "runs['rosa']['epochs'][0]['layers'][0]['right'] > 0.85"
	holds "runs['rosa']['epochs'][3]['accuracy'] > 0.8"
done
check 0 '' $tiny --epochs 1 --mode rosa --source tokens
says 'layer 0: right routes 100.0 %, found 100.0 %$'
check 0 '' $tiny --epochs 1 --mode rosa --json --layers 2 --source 'layer 0' --qk shared $strong
holds "all(l['right'] > 0.85 for l in runs['rosa']['epochs'][0]['layers'])"
holds "len(runs['rosa']['epochs'][0]['layers']) == 2"

# ---------------------------------------------------------------------------------------------------------- picture

if command -v gnuplot >/dev/null; then
	check 0 '' $tiny --epochs 1 --plot curve.png
	says 'drawn to curve.png'
	[ "$(head -c 4 curve.png | tail -c 3)" = PNG ] || problem "curve.png is no PNG"
	check 0 '' $tiny --epochs 1 --plot curve.svg
	grep -q 'global attention (too few steps to learn)' curve.svg || problem "the picture does not say why"
	grep -q '<svg' curve.svg || problem "curve.svg is no SVG"
fi
check 1 'cannot\|No such' $tiny --epochs 1 --plot missing/curve.png
check 1 'must end in .png, .svg or .pdf' $tiny --epochs 1 --plot curve.jpeg
[ ! -s out ] || problem "it trains before it finds that it cannot write"

# ---------------------------------------------------------------------------------------------------------- refusals

check 1 'takes at least 40' --pairs 10 --length 39
check 1 '40 pairs need as many keys, and there are 31' --pairs 40 --vocabulary 64
check 1 'no multiple of the batch' --examples 100
check 1 '--bits: is 12, of which the model.s width 64 is no multiple' --bits 12
check 1 '--source: is layer 5; the model has layers 0 to 1' --source 'layer 5'
check 1 '--delay: is 3 beside a window of 16: .*; use 0, or 16 or more' --source tokens --delay 3
check 2 '--source.*is words; choose from: own, tokens, embeddings, layer N' --source words
[ ! -s out ] || problem "it trains before it finds that it cannot"
check 1 'beyond the 2 of the decoder' --mode rosa --adapter-layers 2
check 2 'give numbers of layers' --adapter-layers 0,x
check 2 'did you mean separate' --qk seperate
check 2 'unknown option --pair, did you mean --pairs' --pair 3

# ------------------------------------------------------------------------------------------------------------ Ctrl-C

# The log grows with every step, so it says when there is something to interrupt.
cat >interrupt.py <<'PYTHON'
import os, signal, subprocess, sys, time

def plain():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

process = subprocess.Popen(sys.argv[1:], stdout=open('out', 'w'), stderr=open('err', 'w'), preexec_fn=plain)
deadline = time.monotonic() + 60
while time.monotonic() < deadline and process.poll() is None:
    if os.path.exists('log.jsonl') and open('log.jsonl').read().count('\n') > 10:
        process.send_signal(signal.SIGINT)
        break
    time.sleep(0.05)
sys.exit(process.wait(60))
PYTHON
rm -f log.jsonl
checks=$((checks + 1))
timeout -k 5 120 python3 interrupt.py "$program" mqar $tiny --epochs 100000 --mode window --json --log log.jsonl
[ $? = 130 ] || problem "Ctrl-C does not end it with 130"
holds "j['interrupted'] and len(runs['window']['epochs']) > 1"

finish
