#!/usr/bin/env python3
"""The C decoder beside llama.cpp, on the same file, tokens and threads, in turns.

Needs PyPI's llama-cpp-python in the interpreter that runs this. Both read a prompt from nothing, write tokens from
nothing, and write tokens after a long history: llama.cpp with its global attention, the decoder here once with global
attention and once with a window. Numbers are tokens per second, medians over rounds in which both are measured one
after the other; what counts is their ratio.

    python bench/compare_llama.py SmolLM2-135M-Instruct.Q4_1.gguf --threads 1 2
"""

import ctypes
import json
import random
import statistics
import time

import common

try:
    import llama_cpp
except ImportError:
    common.die("llama_cpp cannot be imported; install llama-cpp-python into this Python")

WORDS = {"read": "prompt", "write": "writing", "history": "reading the history", "later": "writing after it"}


class Theirs:
    """A context of llama.cpp, through its C interface: no time is spent in Python between tokens but one call."""

    def __init__(self, model, threads, room):
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = room, 512, 512
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(model, options)
        if not self.context:
            common.die("llama.cpp cannot make a context")

    def read(self, tokens):
        """Seconds for all of them, 512 at a time."""
        begin = time.perf_counter()
        for first in range(0, len(tokens), 512):
            self._decode(tokens[first : first + 512])
        return time.perf_counter() - begin

    def write(self, tokens):
        """Seconds for one after the other."""
        begin = time.perf_counter()
        for token in tokens:
            self._decode([token])
        return time.perf_counter() - begin

    def _decode(self, tokens):
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(tokens))):
            common.die("llama.cpp cannot decode")
        llama_cpp.llama_get_logits_ith(self.context, -1)  # waits for the result

    def close(self):
        llama_cpp.llama_free(self.context)


def theirs(model, threads, arguments, tokens):
    """One round of llama.cpp."""
    prompt, written, history = arguments.prompt, arguments.tokens, arguments.context
    result = {}
    for name in ("warm", "read"):
        context = Theirs(model, threads, max(prompt, 512))
        result[name] = prompt / context.read(tokens[:prompt])
        context.close()
    context = Theirs(model, threads, max(written, 512))
    context.write(tokens[:4])
    result["write"] = (written - 4) / context.write(tokens[4:written])
    context.close()
    if history:
        context = Theirs(model, threads, history + written + 64)
        result["history"] = history / context.read(tokens[:history])
        result["later"] = written / context.write(tokens[history : history + written])
        context.close()
    return result


def ours(arguments, threads, window):
    words = ["bench", "model", "--model", arguments.model, "--threads", threads, "--window", window, "--prompt"]
    words += [arguments.prompt, "--tokens", arguments.tokens, "--context", arguments.context, "--repeat", 1, "--json"]
    found = json.loads(common.call(arguments.program, *words))
    names = {"read": "read_per_second", "write": "write_per_second"}
    if arguments.context:
        names.update(history="history_per_second", later="later_per_second")
    return {name: found[key] for name, key in names.items()} | {"start": found["start_ms"]}


def options():
    parser = common.parser(__doc__.partition("\n\n")[0])
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompt", type=int, default=512, help="tokens read from nothing")
    parser.add_argument("--tokens", type=int, default=64, help="tokens written")
    parser.add_argument("--context", type=int, default=8192, help="tokens of the history; 0: none")
    parser.add_argument("--window", type=int, default=512, help="window of the decoder here")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def main():
    arguments = options()
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    model = llama_cpp.llama_model_load_from_file(
        arguments.model.encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        common.die(f"{arguments.model}: llama.cpp cannot load it")
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    draw = random.Random(1)
    tokens = [draw.randrange(size) for _ in range(arguments.context + arguments.prompt + arguments.tokens)]
    version = common.call(arguments.program, "--version").split("\n")[0] + f", llama-cpp-python {llama_cpp.__version__}"
    report = common.Report("llama", arguments, version)
    report.table(
        [
            ("measure", "tokens/s", ""),
            ("threads", "threads", "d"),
            ("llama", "llama.cpp", ".1f"),
            ("everything", "global", ".1f"),
            ("window", "window", ".1f"),
            ("everything_ratio", "global/llama", ".2f"),
            ("window_ratio", "window/llama", ".2f"),
        ]
    )
    for threads in arguments.threads:
        rounds = []
        for _ in range(arguments.rounds):
            rounds.append(
                (
                    theirs(model, threads, arguments, tokens),
                    ours(arguments, threads, 0),
                    ours(arguments, threads, arguments.window),
                )
            )
        for name in WORDS:
            if name not in rounds[0][0]:
                continue
            numbers = [statistics.median(each[side][name] for each in rounds) for side in range(3)]
            ratios = [statistics.median(each[side][name] / each[0][name] for each in rounds) for side in (1, 2)]
            names = ("llama", "everything", "window", "everything_ratio", "window_ratio")
            report.add(measure=WORDS[name], threads=threads, **dict(zip(names, numbers + ratios)))
        report.note(f"start: {statistics.median(each[1]['start'] for each in rounds):.0f} ms")
    report.end()


if __name__ == "__main__":
    main()
