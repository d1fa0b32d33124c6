"""A tiny model for tests of the program from outside, and what the program should compute with it.

The model has random weights and a vocabulary of single bytes and a few special tokens. Only the rows of the head that
belong to printable letters are not zero, so that the likeliest token is always one of them and every answer is text
that can be written down and read again. It is written here byte by byte: no package is needed.
"""
import json
import math
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "rosatune"  # tests change their folder
LIMIT = 120  # seconds until a run counts as hung

# ------------------------------------------------------------------------------------------------------- the model

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
THOUGHTS = ["<think>", "</think>"]
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, MLP = 2, 32, 2, 1, 16, 64

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Enough of Qwen3's to be known by.
THINKING = CHATML.replace(
    "{% endif %}",
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{% endif %}",
)


def letters():
    """Byte-level spelling: the character that stands for each byte in a vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def write_model(path, template=CHATML, seed=1, end_row=0.0, context=512, said=b"abcdefghijklmnopqrstuvwxyz .,\n",
                sampling=()):
    spelled = letters()
    tokens = [spelled[b] for b in range(256)] + SPECIAL + THOUGHTS
    kinds = [1] * 256 + [3] * len(SPECIAL) + [4] * len(THOUGHTS)
    rng = random.Random(seed)
    entries, count = [], 0

    def text(value):
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw

    def put(key, kind, raw):
        nonlocal count
        entries.append(text(key) + struct.pack("<I", kind) + raw)
        count += 1

    def put_array(key, kind, items):
        put(key, 9, struct.pack("<IQ", kind, len(items)) + b"".join(items))

    put("general.architecture", 8, text("llama"))
    for key, value in [
        ("block_count", LAYERS),
        ("context_length", context),
        ("embedding_length", WIDTH),
        ("feed_forward_length", MLP),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
        ("rope.dimension_count", HEAD),
        ("vocab_size", len(tokens)),
    ]:
        put("llama." + key, 4, struct.pack("<I", value))
    put("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5))
    put("llama.rope.freq_base", 6, struct.pack("<f", 10000.0))
    for key, value in sampling:
        put("general.sampling." + key, 6, struct.pack("<f", value))
    put("tokenizer.ggml.model", 8, text("gpt2"))
    put("tokenizer.ggml.pre", 8, text("default"))
    put_array("tokenizer.ggml.tokens", 8, [text(t) for t in tokens])
    put_array("tokenizer.ggml.token_type", 5, [struct.pack("<i", k) for k in kinds])
    put_array("tokenizer.ggml.merges", 8, [])
    put("tokenizer.ggml.eos_token_id", 4, struct.pack("<I", tokens.index("<|im_end|>")))
    if template:
        put("tokenizer.chat_template", 8, text(template))

    def numbers(rows, columns, scale):
        return [rng.gauss(0, scale) for _ in range(rows * columns)]

    tensors = [("token_embd.weight", len(tokens), WIDTH, numbers(len(tokens), WIDTH, 1.0))]
    for layer in range(LAYERS):
        for name, rows, columns in [
            ("attn_q", HEADS * HEAD, WIDTH),
            ("attn_k", KV_HEADS * HEAD, WIDTH),
            ("attn_v", KV_HEADS * HEAD, WIDTH),
            ("attn_output", WIDTH, HEADS * HEAD),
            ("ffn_gate", MLP, WIDTH),
            ("ffn_up", MLP, WIDTH),
            ("ffn_down", WIDTH, MLP),
        ]:
            tensors.append((f"blk.{layer}.{name}.weight", rows, columns, numbers(rows, columns, 0.3)))
        for name in ["attn_norm", "ffn_norm"]:
            tensors.append((f"blk.{layer}.{name}.weight", None, WIDTH, [1.0] * WIDTH))
    head = [[0.0] * WIDTH for _ in tokens]
    for letter in said:
        head[letter] = numbers(1, WIDTH, 0.5)
    head[tokens.index("<|im_end|>")] = numbers(1, WIDTH, end_row) if end_row else [0.0] * WIDTH
    tensors.append(("output_norm.weight", None, WIDTH, [1.0] * WIDTH))
    tensors.append(("output.weight", len(tokens), WIDTH, [x for row in head for x in row]))

    infos, data = b"", b""
    for name, rows, columns, values in tensors:
        shape = [columns] if rows is None else [columns, rows]
        infos += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += struct.pack(f"<{len(values)}f", *values)
        data += bytes(-len(data) % 32)
    start = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count) + b"".join(entries) + infos
    with open(path, "wb") as file:
        file.write(start + bytes(-len(start) % 32) + data)


def write_adapter(path, seed=1, name=None, chain=0):
    """Of 8 bits per symbol, with a window of 8 and 2 sinks, for the models above; or of token ids with a chain of at
    least 2. Returns its gains, by layer and link."""
    rng = random.Random(seed)
    parts = {"q_proj.weight": [WIDTH, WIDTH], "k_proj.weight": [WIDTH, WIDTH], "v_proj.weight": [WIDTH, WIDTH],
             "out_proj.weight": [WIDTH, WIDTH], "e0": [WIDTH], "e1": [WIDTH]}
    if chain:
        parts = {"v_proj.weight": [WIDTH, WIDTH], "out_proj.weight": [WIDTH, WIDTH], "e0": [chain, WIDTH],
                 "e1": [chain, WIDTH], "gain": [chain, 10]}
    gains = []
    header, data = {"__metadata__": {"tensors": f"abc{seed}"}}, b""
    for layer in range(LAYERS):
        for part, shape in parts.items():
            count = math.prod(shape)
            header[f"layers.{layer}.{part}"] = {"dtype": "F32", "shape": shape,
                                                "data_offsets": [len(data), len(data) + 4 * count]}
            numbers = struct.pack(f"<{count}f", *(rng.gauss(0, 0.5) for _ in range(count)))
            data += numbers
            if part == "gain":
                gains.append([struct.unpack("<10f", numbers[i: i + 40]) for i in range(0, len(numbers), 40)])
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    os.makedirs(path)
    with open(path + "/adapter_model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + data)
    options = {"window": 8, "sinks": 2, "bits": 8, "fusion": "post", "layers": [*range(LAYERS)]}
    if chain:
        options |= {"source": "tokens", "chain": chain, "delay": 8, "gain": True, "gate": False, "units": 0}
    base = {"model_type": "llama", "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
    with open(path + "/adapter_config.json", "w", encoding="utf-8") as file:
        json.dump({"format": 1, "rosatune_version": "0", "base_model": base, "options": options,
                   "tensors": f"abc{seed}", "base_model_name_or_path": name}, file)
    return gains


# --------------------------------------------------------------------------------------------------------- running


def put(path, content):
    """The file is then just this text, or these bytes."""
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def run(*words, given=b"", code=0):
    result = subprocess.run([PROGRAM, *words], input=given, capture_output=True, timeout=LIMIT)
    if result.returncode != code:
        raise AssertionError(f"exit code {result.returncode}, not {code}: {words}\n{result.stderr.decode()}")
    return result


def generate(*words, model="plain.gguf", **more):
    return run("generate", "--model", model, *words, **more)


CUT = re.compile(r"rosatune (generate|chat): the answer was cut after [0-9]+ tokens; --tokens N allows more\n")


def out(*words, **more):
    """What is printed, nothing being said besides, unless that answers of a chat were cut."""
    result = generate(*words, **more)
    if CUT.sub("", result.stderr.decode()):
        raise AssertionError(f"not silent: {words}\n{result.stderr.decode()}")
    return result.stdout.decode()


def receptive():
    """SIGINT as a terminal's foreground process has it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


SAMPLED = ["--temperature", "1.5", "--top-k", "20", "--top-p", "0.95", "--min-p", "0.001", "--seed", "7",
           "--repetition-penalty", "1.2", "--repeat-last", "9"]
WINDOW = ["--window", "8", "--sinks", "2"]
GREEDY = ["--temperature", "0"]  # a chat draws by default


class Base(unittest.TestCase):
    def setUp(self):
        for name in os.listdir("."):
            if os.path.isdir(name):
                shutil.rmtree(name)
            elif not name.endswith(".gguf"):
                os.unlink(name)

    def refused(self, pattern, *words, code=1, **more):
        result = generate(*words, code=code, **more)
        message = result.stderr.decode()
        self.assertRegex(message, pattern)
        for line in message.splitlines():
            self.assertTrue(line.startswith("rosatune generate: "), message)


def message(role, content):
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


OPEN = "<|im_start|>assistant\n"


def chat(*words, lines, **more):
    given = "".join(line + "\n" for line in lines).encode()
    return out("--chat", "--tokens", "12", *GREEDY, *words, given=given, **more)


def expected(asked, *words, model="plain.gguf", system=None, opening=OPEN):
    """Each answer as that of a text that has all before it, written out."""
    text, answers = message("system", system) if system else "", ""
    for question in asked:
        text += message("user", question)
        answer = out("--prompt", text + opening, "--tokens", "12", *words, model=model)
        text += message("assistant", answer)
        answers += answer + "\n"
    return answers


# ---------------------------------------------------------------------------------------------------------- losses


def save_tokens(path, tokens):
    head = "{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }" % len(tokens)
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
        file.write(struct.pack(f"<{len(tokens)}i", *tokens))


THETA = [[-3 + 0.7 * length for length in range(13)], [-4 + 0.5 * length for length in range(13)]]


def write_pointer(path, delay, theta=None):
    put(path, json.dumps({"format": 1, "delay": delay, "links": 2, "theta": theta or THETA}))


SEEN = [[1 + 0.5 * count + 1.5 * rank for rank in range(15)] for count in range(4)]


def write_table(path, delay):
    """A pointer by contexts whose links weigh next to nothing: all that matters is its table."""
    put(path, json.dumps({"format": 2, "delay": delay, "theta": [-50] * 13, "slopes": {}, "seen": SEEN}))


def raise_seen(row, tokens, delay):
    """ln p of each token after these, with the pointer of write_table, by its equation."""
    old = tokens[: max(0, len(tokens) - 1 - delay)]
    times = [old.count(x) for x in range(len(row))]
    raised = [
        logit + (SEEN[min(int(math.log2(n)), 3)][int(math.log2(x + 64)) - 6] if n else 0)
        for x, (logit, n) in enumerate(zip(row, times))
    ]
    whole = math.log(math.fsum(map(math.exp, raised)))
    return [x - whole for x in raised]


def find_place(tokens, t, delay):
    """Newest of the longest earlier contexts like the one that ends at t: the place after it, and its length."""
    best, longest = -1, 0
    for e in range(t - delay - 1):
        length = 0
        while length <= e and tokens[e - length] == tokens[t - length]:
            length += 1
        if length and length >= longest:
            best, longest = e + 1, length
    return best, longest


def mix(loss, tokens, t, delay):
    """The loss of token t + 1 with the pointer of write_pointer, by its equation."""
    share, weights = math.exp(-loss), 0
    place, length = find_place(tokens, t, delay)
    for theta in THETA:
        if place < 0:
            break
        weight = math.exp(theta[min(length, 12)])
        weights += weight
        share += weight * (tokens[place] == tokens[t + 1])
        place, shorter = find_place(tokens, place - 1, 0)
        length = min(length, shorter)
    return -math.log(share / (1 + weights))


def logits(tokens, *options, model="plain.gguf"):
    """A row for each token, as the program computes them."""
    save_tokens("ids.npy", tokens)
    run("logits", "--model", model, "--tokens", "ids.npy", "--out", "logits.npy", *options)
    with open("logits.npy", "rb") as file:
        data = file.read()
    start = 10 + struct.unpack("<H", data[8:10])[0]
    width = (len(data) - start) // 4 // len(tokens)
    values = struct.unpack(f"<{(len(data) - start) // 4}f", data[start:])
    return [values[i * width: (i + 1) * width] for i in range(len(tokens))]


def losses(tokens, *options, pointer=None, model="plain.gguf"):
    """-ln p of every token but the first, from the logits; `pointer` is the delay of one."""
    rows = logits(tokens, *options, model=model)
    each = [math.log(math.fsum(math.exp(x) for x in row)) - row[token] for row, token in zip(rows, tokens[1:])]
    return each if pointer is None else [mix(loss, tokens, t, pointer) for t, loss in enumerate(each)]


def is_far(tokens, t, window):
    """Whether tokens t-2..t stood before in that order, the last time at this distance or more."""
    before = [p for p in range(2, t) if tokens[p - 2 : p + 1] == tokens[t - 2 : t + 1]]
    return bool(before) and t - before[-1] >= window


def main(models):
    """The tests of the calling file, in a folder with these models: arguments of write_model by name."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, options in models.items():
            write_model(f"{name}.gguf", **options)
        probe = subprocess.run([PROGRAM, "generate", "--model", "plain.gguf", "--prompt", "a", "--tokens", "1"],
                               stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False)
        if b"this build has no" in probe.stderr:
            print("skipped: " + probe.stderr.decode(), file=sys.stderr)
            sys.exit(77)
        result = unittest.main(argv=sys.argv[:1] + sys.argv[2:], exit=False).result
        os.chdir("/")
    sys.exit(not result.wasSuccessful())
