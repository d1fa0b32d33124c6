#!/bin/sh
# The program from outside: exit codes, messages, files. The first argument is its path.
#
# Results are compared with a brute-force search written from the definition of retrieval, in Python without NumPy, so
# that reader, writer, options and both ways through the library are checked together.
#
# Nothing here waits without end: standard input is empty, every run of the program has a time limit far above what it
# needs, and the other end of a pipe is only waited for as long as the program lives.

# shellcheck disable=SC2086 # $pair and $small are lists of words
# shellcheck disable=SC2002,SC2012,SC2015 # a pipe is wanted; the names are ours; problem may follow a failed grep
command -v python3 >/dev/null || { echo "python3 is needed for this test" >&2; exit 77; }
exec 3>&2
command= # the program itself
# shellcheck source=tests/command.bash
. "${0%/*}/command.bash"

# bounded COMMAND...: runs it, and gives it up, and this test with it, if it does not end.
bounded() {
	timeout --foreground -k 5 60 "$@"
	ended=$?
	if [ "$ended" = 124 ] || [ "$ended" = 137 ]; then
		echo "FAILED: does not end: $*" >&3
		exit 1
	fi
	return "$ended"
}

# Every line of a message begins with the program's name.
afterwards() {
	grep -qv '^rosatune' err && problem "a line without the program's name: $*"
}

# files NAMES: exactly these lie in the folder "results".
files() {
	checks=$((checks + 1))
	found=$(cd results && ls -A | tr '\n' ' ')
	[ "$found" = "$*${*:+ }" ] || problem "files are '$found', not '$*'"
}

cat >npy.py <<'PYTHON'
import itertools, random, struct, sys

def save(path, shape, values, descr='<u2', fortran=False, cut=0):
    code = {'|u1': 'B', '<u2': '<%dH', '>u2': '>%dH', '<u4': '<%dI', '<i4': '<%di', '<f4': '<%df'}[descr]
    raw = isinstance(values, bytes)
    body = values if raw else bytes(values) if code == 'B' else struct.pack(code % len(values), *values)
    head = "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }" % (descr, fortran, tuple(shape))
    head += ' ' * (-(len(head) + 11) % 64) + '\n'
    data = b'\x93NUMPY\x01\x00' + struct.pack('<H', len(head)) + head.encode() + body
    open(path, 'wb').write(data[:len(data) - cut])

def load(path):
    data = open(path, 'rb').read()
    assert data[:8] == b'\x93NUMPY\x01\x00', path
    size, = struct.unpack('<H', data[8:10])
    head = eval(data[10:10 + size].decode())
    assert head['descr'] == '<i4' and head['fortran_order'] is False, head
    assert (10 + size) % 64 == 0
    return head['shape'], list(struct.unpack('<%di' % ((len(data) - 10 - size) // 4), data[10 + size:]))

def fold(symbols, on):
    """The runs begun by each step: starts, and symbols."""
    starts = [t for t in range(len(symbols)) if t == 0 or not on or symbols[t] != symbols[t - 1]]
    return starts, [symbols[t] for t in starts]

def lookup(query, keys, starts, n, t, policy, cut):
    best, run = 0, -1
    for e in range(n):
        begun = e + 1 < n
        if policy == 'readable' and not (begun and starts[e + 1] < t):
            continue
        if policy == 'inclusive' and not begun:
            continue
        length = 0
        while length <= e and length < len(query) and query[-1 - length] == keys[e - length] and length != cut:
            length += 1
        if length >= 1 and length >= best:
            best, run = length, e
    if run < 0 or run + 1 >= n or (policy == 'literal' and not starts[run + 1] < t):
        return -1, 0
    return starts[run + 1], best

def route(query, key, bits, policy='readable', on=True, cut=None, delay=0):
    qstart, qsym = fold(query, on)
    kstart, ksym = fold(key, on)
    tau, length, flips, table = [], [], [], None
    for t in range(len(query)):
        nq = sum(s <= t for s in qstart)
        late = t - delay
        nk = sum(s <= late for s in kstart)
        place, match = lookup(qsym[:nq], ksym, kstart, nk, late, policy, cut)
        tau.append(place)
        length.append(match)
        if qstart[nq - 1] == t:
            table = [lookup(qsym[:nq - 1] + [qsym[nq - 1] ^ 1 << j], ksym, kstart, nk, late, policy, cut)[0]
                     for j in range(bits)]
        flips += table
    return tau, length, flips
PYTHON

cat >make.py <<'PYTHON'
from npy import *
random.seed(5)
def sticky(n, bits):
    symbols = []
    for _ in range(n):
        symbols.append(symbols[-1] if symbols and random.random() < .4 else random.randrange(1 << bits))
    return symbols
q, k = sticky(96, 2), sticky(96, 2)
save('q1.npy', [96], q)
save('k1.npy', [96], k, '|u1')
save('q2.npy', [3, 32], q, '|u1')
save('k2.npy', [3, 32], k)
save('q4.npy', [96], [x * 99991 + 70000 for x in q], '<u4')
save('k4.npy', [96], [x * 99991 + 70000 for x in k], '<u4')
save('short.npy', [95], q[:95])
save('column.npy', [32, 3], q)
save('cut.npy', [96], q, cut=1)
save('big.npy', [96], q, '>u2')
save('float.npy', [96], q, '<f4')
save('fortran.npy', [3, 32], q, fortran=True)
save('three.npy', [3, 4, 8], q)
save('empty.npy', [0], [])
save('seven.npy', [3, 32], q[:70] + [7] + q[71:])
save('wide.npy', [600], [random.randrange(16) for _ in range(600)])
PYTHON
python3 make.py || exit 1
printf 'hello hello' >hello.txt
printf 'h' >h.txt
mkdir results

# ---------------------------------------------------------------------------------------------------- the program

check 0 '' --version
says '^rosatune [0-9]*\.[0-9]*\.[0-9]*$'
says '^instruction set: '
says '^optional: .*gnuplot: \(not \)*found$'
PATH=/nonexistent "$program" --version >out 2>err
says 'gnuplot: not found$'
check 0 '' --help
says 'bench retrieve'
check 0 '' retrieve --help
says '--max-match L'
check 0 '' retrieve --bits 99 --help
check 0 '' bench --help
says 'rosatune bench retrieve'
check 0 '' bench retrieve --help
says '^  uniform '
sed -n '/^streams:/,$s/^  \([^ ]*\) .*/\1/p' out >kinds
check 0 '' bench retrieve --list-streams
checks=$((checks + 1))
[ -s out ] && cmp -s out kinds || problem "the list of streams differs from the help"
check 0 '' demo -h
check 0 '' help
says 'bench retrieve'
check 0 '' help bench retrieve
says '^usage: rosatune bench retrieve'
check 0 '' help demo
says '^  -f, --file TEXT '
check 0 '' help help
check 0 '' help bench
says 'rosatune bench retrieve .*measure the speed and the memory'
check 2 'rosatune: unknown command gnerate, did you mean generate?' help gnerate
check 0 '' man bench retrieve
says '^.B rosatune bench retrieve$'
says '^\\fB\\-\\-stream\\fR \\fIKIND\\fR$'
check 2 'COMMAND is missing' man
check 2 'rosatune bench: a second word is missing' man bench
check 2 'unexpected argument x' man demo x
for shell in bash fish zsh; do
	check 0 '' completion $shell
	says 'bench'
done
check 2 'csh is not known; choose from: bash, fish, zsh' completion csh
bounded "$program" >out 2>err
[ $? = 2 ] && grep -q '^usage' err || problem "no command: exit code 2 and the usage"
check 2 'rosatune: unknown command retreive, did you mean retrieve?' retreive
check 2 'rosatune: unknown command bnch, did you mean bench?' bnch
check 2 'rosatune: unknown command train, did you mean tune?' train
check 2 'rosatune: unknown command run, did you mean chat?' run model.gguf
check 2 "rosatune: unknown command xyzzy; 'rosatune --help' lists" xyzzy
for page in eval generate mqar tune recall serve ppl 'bench train' 'data pack' 'pointer fit' 'adapter export' chat; do
	check 0 '' help $page
	awk 'length > 120 { exit 1 }' out || problem "a line of more than 120 columns: help $page"
done
grep -q 'only read' out && problem "chat offers --tokens 0, which it refuses"
check 0 '' -V
says '^rosatune [0-9]'
check 2 'rosatune: unknown option -v, did you mean --version?' -v
check 2 'rosatune: unknown command version, did you mean --version?' version
check 2 'rosatune: unknown option --verison, did you mean --version?' --verison
check 2 'rosatune bench: a second word is missing: retrieve, model, ' bench
check 2 "rosatune bench: unknown command retreive, did you mean 'rosatune bench retrieve'?" bench retreive
if [ -w /dev/full ]; then
	bounded "$program" --help >/dev/full 2>err
	[ $? = 1 ] && grep -q '^rosatune: cannot write to standard output' err || problem "lost output goes unnoticed"
fi

# -------------------------------------------------------------------------------------------- retrieve: wrong usage

pair="--query q1.npy --key k1.npy"
check 2 'rosatune retrieve: --query is missing' retrieve
check 2 '--bits is missing' retrieve $pair --out results/t.npy
check 2 '--out is missing' retrieve $pair --bits 2
check 2 'unknown option --qeury, did you mean --query?' retrieve --qeury q1.npy
check 2 "unknown option --colour; 'rosatune help retrieve' lists" retrieve --colour
# Options of other programs are named by ours.
check 2 'unknown option -t, did you mean --threads?' retrieve -t 2
check 2 'unknown option -m; give PATH without an option: rosatune info PATH' info -m x.gguf
check 2 'unknown option --file; give FILE without an option: rosatune recall' recall --file x.txt
check 2 'unknown option --max-tokens, did you mean --tokens?' generate --max-tokens 5
check 2 'unknown option --n-predict, did you mean --tokens?' chat --n-predict 5
check 2 'unknown option --max_new_tokens, did you mean --tokens?' generate --max_new_tokens=5
check 2 'unknown option --context, did you mean --window?' generate --context 4096
check 2 'unknown option --temp, did you mean --temperature?' generate --temp=0.5
check 2 'unknown option --ctx-size, did you mean --window?' generate --ctx-size 4096
check 2 'unknown option --ctx-size, did you mean --window?' ppl --ctx-size 4096
check 2 'unknown option -ngl: models are computed on the CPU; leave it out' generate -ngl 99
check 2 'unknown option -ngl, did you mean --device?' retrieve -ngl 99
# Short options are the long ones; their value is the next word.
check 2 '--tokens x: give a whole number' generate -n x
check 2 '--tokens needs a value: --tokens N' generate -n
check 2 'unknown option -n5' generate -n5
check 1 'cannot open missing.txt' demo -f missing.txt
check 2 'unknown option --max, did you mean --max-match?' retrieve --max 3
check 2 '--query needs a value: --query Q.npy' retrieve --query
check 2 '--query needs a value' retrieve --query --key k1.npy
check 2 '--no-fold takes no value' retrieve --no-fold=yes
check 2 'unexpected argument q1.npy; options begin with --' retrieve q1.npy
check 2 'unexpected argument a.txt; a file to read is given with --file a.txt' ppl -m x.gguf a.txt
check 2 'unexpected argument M.gguf; a model is given with --model M.gguf' generate M.gguf -p hi
check 2 "unexpected argument 'hello world'; a text is given with --text 'hello world'" tokenize -m M 'hello world'
check 2 'unexpected argument q1.npy; a file to read is given with --file q1.npy' tokenize -m M q1.npy
check 2 'unknown option --overwrite, did you mean --force?' data pack --overwrite
check 2 'unknown option --replace, did you mean --force?' data pack --replace
for hint in --model:model=PATH -m:model=PATH --steps:stage.1.steps=N --max-tokens:stage.1.tokens=N; do
	check 2 "unknown option ${hint%:*}: it is a key of CONFIG; give --set ${hint#*:}" tune c.json "${hint%:*}" 3
done
for bits in 0 21 -1 x 4k '' 99999999999999999999999; do
	check 2 'give a whole number from 1 to 20' retrieve $pair --bits "$bits" --out results/t.npy
done
check 2 '--policy readible is not known, did you mean readable?' retrieve $pair --bits 2 --policy readible
check 2 '--policy x is not known; choose from: readable, literal, inclusive' retrieve $pair --bits 2 --policy x
check 2 '--chunk 0: give a whole number' retrieve $pair --bits 2 --out results/t.npy --chunk 0
check 2 '--max-match 5000000000' retrieve $pair --bits 2 --out results/t.npy --max-match 5000000000
check 2 'results/t.npy is named for two outputs' retrieve $pair --bits 2 --out results/t.npy --flips results/t.npy
files

# --------------------------------------------------------------------------------------------- retrieve: bad files

bad() {
	file=$1 reason="rosatune retrieve: .*$1.*$2"
	check 1 "$reason" retrieve --query "$file" --key k1.npy --bits 2 --out results/t.npy
	check 1 "$reason" retrieve --query q1.npy --key "$file" --bits 2 --out results/t.npy
}
bad missing.npy 'No such file'
bad results 'folder'
bad hello.txt 'not a NumPy file'
bad cut.npy 'cut short'
bad big.npy 'big endian'
bad float.npy "'f4', symbols must be uint8, uint16 or uint32"
bad fortran.npy "'fortran_order'"
bad three.npy '3 dimensions'
bad empty.npy 'dimension of 0'
bad short.npy 'has shape \[95\]'
bad q2.npy 'has shape \[3,32\]'
check 1 'query q2.npy has shape \[3,32\], key column.npy has shape \[32,3\]' \
	retrieve --query q2.npy --key column.npy --bits 2 --out results/t.npy
check 1 'seven.npy: symbol 7 at \[2,6\] is not below 2^2' \
	retrieve --query q2.npy --key seven.npy --bits 2 --out results/t.npy
check 1 'q1.npy: symbol [23] at \[[0-9]*\] is not below 2^1' retrieve $pair --bits 1 --out results/t.npy
check 1 'q4.npy: symbol [0-9]* at \[[0-9]*\] is not below 2^16' retrieve --query q4.npy --key k4.npy --bits 16 --out results/t.npy
check 1 'counterfactuals of symbols of 20 bits' \
	retrieve --query q4.npy --key k4.npy --bits 20 --out results/t.npy --flips results/f.npy
check 1 'counterfactuals of symbols of 20 bits' \
	retrieve --query q4.npy --key k4.npy --bits 20 --out results/t.npy --flips results/f.npy --chunk 5
check 2 'leave out --chunk, --flips or --device cuda' retrieve $pair --bits 2 --out results/t.npy --device cuda \
	--chunk 5 --flips results/f.npy
if [ -e /dev/nvidiactl ]; then
	check 0 '' retrieve $pair --bits 2 --out results/cuda.npy --flips results/cuda_flips.npy --device cuda
	check 0 '' retrieve $pair --bits 2 --out results/t.npy --flips results/f.npy
	cmp results/t.npy results/cuda.npy && cmp results/f.npy results/cuda_flips.npy ||
		problem "the device found other places"
	check 0 '' retrieve $pair --bits 2 --out results/cuda.npy --device cuda --chunk 5
	cmp results/t.npy results/cuda.npy || problem "the device found other places in chunks"
	rm results/*.npy
else
	check 1 'retrieve on the CPU' retrieve $pair --bits 2 --out results/t.npy --device cuda
fi
check 1 'cannot write none/t.npy: folder none: No such file' retrieve $pair --bits 2 --out none/t.npy
check 1 'cannot write results: it is a folder' retrieve $pair --bits 2 --out results
check 1 'cannot write none/f.npy' retrieve $pair --bits 2 --out results/t.npy --flips none/f.npy
if [ -w /dev/full ]; then
	check 1 'writing /dev/full: No space left' retrieve $pair --bits 2 --out results/t.npy --flips /dev/full
fi
files

# A file that may not grow stands for a disk that is full in the middle: the old result stays, nothing else is left.
echo old >results/t.npy
checks=$((checks + 1))
(
	trap '' XFSZ
	ulimit -f 1
	bounded "$program" retrieve --query wide.npy --key wide.npy --bits 4 --out results/t.npy --flips results/f.npy
) >out 2>err
[ $? = 1 ] && grep -q '^rosatune retrieve: error while writing results/[tf].npy: File too large' err ||
	problem "a write that fails in the middle"
[ "$(cat results/t.npy)" = old ] || problem "a failed write has replaced the old file"
files t.npy
rm -f results/t.npy

# A limit on memory, in which OpenBLAS finds no room for its buffers and would try for ever. A build with sanitizers
# does not start under one.
if (ulimit -v 1000000 && exec timeout 60 "$program" --version) >out 2>err; then
	checks=$((checks + 1))
	(
		unset OPENBLAS_NUM_THREADS
		ulimit -v 100000
		bounded "$program" bench products --format F32 --rows 64 --columns 256 --steps 8 --repeat 1
	) >out 2>err || problem "products under a limit on memory"
	says F32
fi

# ------------------------------------------------------------------------------------------ retrieve: right answers

cat >expect.py <<'PYTHON'
from npy import *
import functools, subprocess
@functools.lru_cache(None)
def expected(dims, *rules):
    routes, steps = (1, 96) if dims == 1 else (3, 32)
    parts = [slice(r * steps, (r + 1) * steps) for r in range(routes)]
    return [sum(lists, []) for lists in zip(*(route(q[part], k[part], 2, *rules) for part in parts))]
def compare(dims, policy, on, cut, chunk, threads, delay=0, wide=False):
    words = [program, 'retrieve', '--query', 'q%d.npy' % (4 if wide else dims), '--key=k%d.npy' % (4 if wide else dims),
             '--bits', '20' if wide else '2', '--policy', policy, '--out', 'results/t.npy', '--length', 'results/l.npy']
    words += [] if wide else ['--flips', 'results/f.npy']
    words += ['--delay', str(delay)] if delay else []
    words += [] if on else ['--no-fold']
    words += ['--max-match', str(cut)] if cut else []
    words += ['--chunk', str(chunk)] if chunk else []
    words += ['--threads', str(threads)] if threads is not None else []
    result = subprocess.run(words, capture_output=True, timeout=60)
    assert result.returncode == 0 and result.stdout == b'' and result.stderr == b'', (words, result)
    tau, length, flips = expected(dims, policy, on, cut or None, delay)
    shape = (96,) if dims == 1 else (3, 32)
    assert load('results/t.npy') == (shape, tau), words
    assert load('results/l.npy') == (shape, length), words
    assert wide or load('results/f.npy') == (shape + (2,), flips), words
program = sys.argv[1]
def symbols(path, width):
    data = open(path, 'rb').read()[-96 * width:]
    return list(data) if width == 1 else list(struct.unpack('<96H', data))
q, k = symbols('q1.npy', 2), symbols('k1.npy', 1)
for policy, on, cut in itertools.product(['readable', 'literal', 'inclusive'], [True, False], [0, 1, 3]):
    for dims, chunk, threads in [(1, 0, 1), (2, 0, None), (2, 0, 2), (1, 1, 1), (2, 7, 2), (2, 1000, None)]:
        compare(dims, policy, on, cut, chunk, threads)
    for delay in [1, 5, 95, 1000]:
        compare(1, policy, on, cut, 7 * (delay % 2), 1, delay)
    for chunk, delay in [(0, 0), (0, 3), (5, 0), (5, 12)]:
        compare(1, policy, on, cut, chunk, 1, delay, wide=True)
PYTHON
checks=$((checks + 1))
bounded python3 expect.py "$program" >out 2>err || problem "answers differ from the definition"
files f.npy l.npy t.npy
rm -f results/*

# One output alone, over a pipe in both directions, and with units.
check 0 '' retrieve $pair --bits 2 --out results/t.npy --chunk 1k
files t.npy
cat q1.npy | bounded "$program" retrieve --query /dev/stdin --key k1.npy --bits 2 --out /dev/stdout 2>err |
	cat >piped.npy
cmp -s piped.npy results/t.npy || problem "a pipe gives another result than a file"
rm -f results/*

# ------------------------------------------------------------------------------------------------- retrieve: Ctrl-C

# While it waits for input, while it works, and while it waits for a reader of its output. The second works for long, a
# step at a time, on streams that are large for that. The third reads all as one chunk, and its bar on a terminal shows
# that it asks within the chunk whether to stop. The signal must not come before the program is ready for it: that
# it has opened its end of the pipe shows that it is.
cat >interrupt.py <<'PYTHON'
from npy import *
import os, pty, re, select, signal, subprocess, time
program = sys.argv[1]
started = []
def start(query, *more, stderr=subprocess.PIPE):
    def receptive():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    words = [program, 'retrieve', '--key', 'long.npy', '--bits', '16', '--query', query] + list(more)
    started.append(subprocess.Popen(words, stderr=stderr, preexec_fn=receptive))
    return started[-1]
def alive(process):
    assert process.poll() is None, (process.returncode, process.stderr.read())
    return True
def writing_end(process):
    while alive(process):
        try:
            descriptor = os.open('fifo', os.O_WRONLY | os.O_NONBLOCK)
            os.set_blocking(descriptor, True)
            return open(descriptor, 'wb')
        except OSError: # nobody reads yet
            time.sleep(.005)
def reading_end(process):
    descriptor = os.open('fifo', os.O_RDONLY | os.O_NONBLOCK)
    while alive(process):
        if select.select([descriptor], [], [], .005)[0]:
            return open(descriptor, 'rb')
def stop(process):
    process.send_signal(signal.SIGINT)
    message = process.communicate(timeout=30)[1]
    assert process.returncode == 130, (process.returncode, message)
    assert message.startswith(b'rosatune retrieve: interrupted'), message
    assert os.listdir('results') == [], os.listdir('results')
def test():
    waiting = start('fifo', '--out', 'results/t.npy')
    with writing_end(waiting):
        stop(waiting)

    working = start('fifo', '--out', 'results/t.npy', '--flips', 'results/f.npy', '--chunk', '1', '--threads', '1')
    with writing_end(working) as writer:
        writer.write(open('long.npy', 'rb').read())
    time.sleep(.1)
    stop(working)

    terminal, theirs = pty.openpty()
    working = start('whole.npy', '--key', 'whole.npy', '--out', 'results/t.npy', '--flips', 'results/f.npy',
                    '--chunk', '1G', '--threads', '1', stderr=theirs)
    os.close(theirs)
    text = b''
    while not re.search(rb'\d%', text):
        text += os.read(terminal, 4096)
    assert b'100%' not in text, text
    working.send_signal(signal.SIGINT)
    while b'interrupted' not in text:
        text += os.read(terminal, 4096)
    assert working.wait(30) == 130 and os.listdir('results') == []

    writing = start('more.npy', '--key', 'more.npy', '--out', 'results/t.npy', '--length', 'fifo')
    with reading_end(writing):
        stop(writing)
random.seed(1)
save('long.npy', [16, 1 << 17], random.randbytes(1 << 22))
save('whole.npy', [1 << 22], random.randbytes(1 << 22), '|u1')
save('more.npy', [1 << 15], random.randbytes(1 << 16))
os.mkfifo('fifo')
def late(*_):
    raise TimeoutError
signal.signal(signal.SIGALRM, late)
signal.alarm(50)
try:
    test()
finally:
    for process in started:
        process.kill()
PYTHON
checks=$((checks + 1))
bounded python3 interrupt.py "$program" >out 2>err || problem "Ctrl-C"
files

# ----------------------------------------------------------------------------------------------------------- bench

small="--routes 2 --tokens 1k --repeat 2"
check 0 '' bench retrieve $small
says '^  time per token, median *[0-9.]* ns$'
says '^  routes in the ordered index *0$'
# json NAMES...: the last stdout is a JSON object that has these numbers.
json() {
	checks=$((checks + 1))
	python3 -c '
import json, sys
result = json.load(open("out"))
for name in sys.argv[1:]:
    name, _, value = name.partition("=")
    assert name in result, name
    assert not value or str(result[name]) == value, (name, result[name])
    assert value or result[name] >= 0, (name, result[name])
' "$@" 2>err || problem "JSON: $*"
}
check 0 '' bench retrieve $small --json
json ns_per_token ns_per_token_min ns_per_token_max lookups_per_token ns_per_lookup bytes_per_run runs_per_token \
	ordered_routes=0 hit_rate mean_match routes=2 tokens=1024 bits=4 threads=1 repeat=2 stream=uniform policy=readable flips=1
for stream in uniform sticky correlated periodic; do
	check 0 '' bench retrieve $small --json --stream $stream --bits 3 --threads 2 --seed 9
	json hit_rate stream=$stream bits=3 threads=2 seed=9
done
check 0 '' bench retrieve --query wide.npy --key wide.npy --json --no-flips --no-fold --policy literal --max-match 4
json ns_per_token stream=file tokens=600 routes=1 flips=0 lookups_per_token=1.0 runs_per_token=1.0 policy=literal \
	max_match=4 fold=0
check 0 '' bench retrieve $small --chunk 100 --json
json ns_per_token bytes_per_run hit_rate chunk=100 flips=0 tokens=1024
check 0 '' bench retrieve $small --bits 16 --alphabet 4 --no-flips --json
json ns_per_token hit_rate processor_ns_per_token_min alphabet=4 bits=16
check 2 '--alphabet 6: give a power of two' bench retrieve $small --alphabet 6
check 2 'at most the 2^4 values' bench retrieve $small --alphabet 32
check 2 'give one of the two' bench retrieve $small --chunk 100 --decode
check 0 '' bench retrieve --decode --routes 3 --tokens 300 --json
json step_us_median step_us_p99 step_us_max steps_timed=256 bytes_per_run ordered_routes=0 routes=3 tokens=300
check 0 '' bench retrieve --decode --routes 2 --tokens 150000 --steps 9000 --json
json step_us_max steps_timed=9000 tokens=150000
check 2 '--steps counts single steps; give --decode too' bench retrieve --steps 300
check 2 '--decode times the last 300 steps' bench retrieve --decode --steps 300 --tokens 300
# A history of several pieces: all steps of all of them are pushed.
check 0 '' bench retrieve --decode --no-fold --routes 2 --tokens 270000 --json
json step_us_median runs_per_token=1.0 tokens=270000
check 0 '' bench retrieve --decode --query wide.npy --key wide.npy
says 'one step of all, median'
check 2 '--stream unifrom is not known, did you mean uniform?' bench retrieve --stream unifrom
check 2 '--query and --key go together' bench retrieve --query wide.npy
check 2 'replace made streams' bench retrieve --query wide.npy --key wide.npy --routes 2
check 2 '--decode times the last 256 steps' bench retrieve --decode --tokens 256
check 2 '--tokens 0' bench retrieve --tokens 0
check 2 '--routes 0' bench retrieve --routes 0
check 2 '--tokens 1kk' bench retrieve --tokens 1kk
check 1 'q1.npy has 96 steps' bench retrieve --decode --query q1.npy --key k1.npy
check 1 'missing.npy: No such file' bench retrieve --query missing.npy --key wide.npy

# ------------------------------------------------------------------------------------------------------------ demo

check 0 '' demo
says 'right: [0-9]* characters match'
says 'a match was found'
checks=$((checks + 1))
[ "$(wc -l <out)" -le 40 ] || problem "the demo is longer than 40 lines"
[ "$(tr -d '[:print:]\n' <out | wc -c)" = 0 ] || problem "the demo colours a pipe"
check 0 '' demo --file hello.txt --order 3
says '11 characters, a symbol of 5 bits'
check 0 '' demo --file wide.npy
# Control characters of a text are not printed: ESC, and CSI as one character (U+009B).
python3 -c 'print("ab\x1b[31m ab\x9b31m " * 40)' >evil.txt
check 0 '' demo --file evil.txt
checks=$((checks + 1))
[ "$(tr -d '[:print:]\n' <out | wc -c)" = 0 ] || problem "the demo prints control characters"
check 1 'rosatune demo: cannot open missing.txt' demo --file missing.txt
check 1 'h.txt has 1 characters; give a text with at least two' demo --file h.txt
check 2 'unknown option --fiel, did you mean --file?' demo --fiel x

# ---------------------------------------------------------------------------------------------------------- doctor

check 0 '' doctor
says '^OK *retrieval '
says '^OK *products '
says ' 0 failed: ready$'
check 0 '' doctor --json
python3 -c '
import json
result = json.load(open("out"))
assert result["ok"] is True
names = [check["name"] for check in result["checks"]]
assert len(names) == len(set(names)) and {"processor", "memory", "disk", "jansson", "gnuplot", "libedit"} <= set(names)
for check in result["checks"]:
    assert check["status"] in ("ok", "missing", "failed"), check
' 2>err || problem "JSON of doctor"
PATH=/nonexistent "$program" doctor >out 2>err || problem "doctor without programs"
says '^missing *gnuplot .*install gnuplot-nox'
says '^missing *python .*install python3'
# Under python -m rosatune it looks at that interpreter.
printf '#!/bin/sh\necho 1.2.3 with "${1#-}"\n' >interpreter
chmod +x interpreter
PATH=/nonexistent ROSATUNE_PYTHON=$PWD/interpreter "$program" doctor >out 2>err || problem "doctor of an interpreter"
says "^OK *python .*the package rosatune 1.2.3 with c, in $PWD/interpreter"
rm interpreter
# What no command can do without makes it fail: here, nothing can be written to a file.
checks=$((checks + 1))
(
	trap '' XFSZ
	ulimit -f 0
	bounded "$program" doctor
	echo "exit code $?"
) 2>err | cat >out
says '^FAILED *temporary .*File too large'
says ' 1 failed: not ready$'
says '^exit code 1$'

finish
