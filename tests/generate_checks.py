"""rosatune generate and rosatune ppl on a tiny model, from outside. The first argument is the program.

The model has random weights and a vocabulary of single bytes and a few special tokens. Only the rows of the head that
belong to printable letters are not zero, so that the likeliest token is always one of them and every answer is text
that can be written down and read again. It is written here byte by byte: no package is needed.
"""
import gzip
import json
import lzma
import math
import os
import pty
import random
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "rosatune"
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


def write_adapter(path, seed=1, name=None):
    """Of 8 bits per symbol, with a window of 8 and 2 sinks, for the models above."""
    rng = random.Random(seed)
    parts = {"q_proj.weight": [WIDTH, WIDTH], "k_proj.weight": [WIDTH, WIDTH], "v_proj.weight": [WIDTH, WIDTH],
             "out_proj.weight": [WIDTH, WIDTH], "e0": [WIDTH], "e1": [WIDTH]}
    header, data = {"__metadata__": {"tensors": f"abc{seed}"}}, b""
    for layer in range(LAYERS):
        for part, shape in parts.items():
            count = math.prod(shape)
            header[f"layers.{layer}.{part}"] = {"dtype": "F32", "shape": shape,
                                                "data_offsets": [len(data), len(data) + 4 * count]}
            data += struct.pack(f"<{count}f", *(rng.gauss(0, 0.5) for _ in range(count)))
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    os.makedirs(path)
    with open(path + "/adapter_model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + data)
    options = {"window": 8, "sinks": 2, "bits": 8, "fusion": "post", "layers": [*range(LAYERS)]}
    base = {"model_type": "llama", "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
    with open(path + "/adapter_config.json", "w", encoding="utf-8") as file:
        json.dump({"format": 1, "rosatune_version": "0", "base_model": base, "options": options,
                   "tensors": f"abc{seed}", "base_model_name_or_path": name}, file)


# --------------------------------------------------------------------------------------------------------- running


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


class Text(Base):
    def test_no_cut_changes_the_text(self):
        for options in [], SAMPLED, WINDOW, SAMPLED + WINDOW:
            with self.subTest(options=options):
                words = ["--prompt", "A story of a ferryman.", "--tokens", "40", *options]
                whole = out(*words)
                self.assertEqual(len(whole), 40)
                self.assertEqual(out(*words, "--chunk", "3", "--threads", "1"), whole)
                self.assertEqual(out(*words, "--threads", "3"), whole)

    def test_options_tell(self):
        words = ["--prompt", "A story of a ferryman.", "--tokens", "40"]
        texts = {out(*words, *more) for more in ([], SAMPLED, WINDOW, SAMPLED + ["--seed", "8"],
                                                 ["--repetition-penalty", "1.5"])}
        self.assertEqual(len(texts), 5)

    def test_where_the_text_comes_from(self):
        whole = out("--prompt", "Ferry männer rufen.", "--tokens", "20")
        with open("book.txt", "w", encoding="utf-8") as file:
            file.write("Ferry männer")
        self.assertEqual(out("--file", "book.txt", "--prompt", " rufen.", "--tokens", "20"), whole)
        given = "Ferry männer rufen.".encode()
        self.assertEqual(out("--file", "-", "--tokens", "20", given=given), whole)
        self.assertNotEqual(out("--file", "book.txt", "--tokens", "20"), whole)

    def test_compressed_files(self):
        """Recognised by their content, whatever their names; a build without a library says which to install."""
        book = "Ferry männer rufen. ".encode() * 20
        with open("book.txt", "wb") as file:
            file.write(book)
        packed = {"zlib": gzip.compress(book), "lzma": lzma.compress(book)}
        if shutil.which("zstd"):
            packed["zstd"] = subprocess.run(["zstd", "-c", "book.txt"], capture_output=True, check=True).stdout
        features = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
        for name, content in packed.items():
            with open("packed", "wb") as file:
                file.write(content)
            if f"{name}: yes" not in features:
                self.refused("install", "--file", "packed")
                continue
            self.assertEqual(out("--file", "packed", "--tokens", "9"), out("--file", "book.txt", "--tokens", "9"))
            self.assertEqual(out("--file", "-", "--tokens", "9", given=content),
                             out("--file", "book.txt", "--tokens", "9"))
            with open("packed", "wb") as file:
                file.write(content[:-20])
            self.refused("packed: is ", "--file", "packed")

    def test_stop_strings(self):
        words = ["--prompt", "A story.", "--tokens", "60"]
        whole = out(*words)
        for stop in whole[30:33], whole[9:10]:
            self.assertEqual(out(*words, "--stop", stop, "--stop", "never said"), whole[: whole.index(stop)])
        result = json.loads(out(*words, "--json", "--stop", whole[30:33]))
        self.assertEqual(result["end"], "stop")
        # A beginning of a stop string at the end of the text is text.
        self.assertEqual(out(*words, "--stop", whole[-2:] + "never said"), whole)

    def test_json(self):
        words = ["--prompt", 'Say "a\\b".', "--tokens", "30"]
        result = json.loads(out(*words, "--json"))
        self.assertEqual(result["text"], out(*words))
        self.assertEqual(bytes(result["tokens"]).decode(), result["text"])
        self.assertEqual(result["end"], "length")
        self.assertEqual((result["tokens_read"], result["tokens_made"], result["context"]), (10, 30, 40))
        self.assertGreater(result["attention_bytes"], 0)
        self.assertEqual(result["retrieval_bytes"], 0)

    def test_ends_where_the_model_ends(self):
        result = json.loads(out("--prompt", "A story.", "--tokens", "500", "--json", model="ends.gguf"))
        self.assertEqual(result["end"], "end")
        self.assertEqual(result["tokens"][-1], 256 + SPECIAL.index("<|im_end|>"))
        self.assertEqual(len(result["text"]), len(result["tokens"]) - 1)

    def test_special_tokens_are_recognised(self):
        result = json.loads(out("--prompt", "<|im_start|>a", "--tokens", "1", "--json"))
        self.assertEqual(result["tokens_read"], 2)

    def test_long_texts_are_warned_of(self):
        def warning(tokens):
            return rf"\Arosatune (generate|ppl): warning: the text has {tokens} tokens, .* trained for 64.*\n\Z"

        def made(read, tokens, *more):
            """What is said when so many tokens are given and made."""
            words = ["--prompt", "x" * read, "--tokens", str(tokens), *more]
            return generate(*words, model="short.gguf").stderr.decode()

        self.assertRegex(made(65, 1), warning(65))
        self.assertEqual(made(64, 1), "")
        self.assertEqual(made(65, 1, *WINDOW), "")
        self.assertEqual(made(65, 1, "--window", "64"), "")
        # A window that is wider than what the model was trained for, and layers without one.
        self.assertRegex(made(65, 1, "--window", "65"), warning(65))
        self.assertRegex(made(65, 1, *WINDOW, "--global-layers", "1"), warning(65))
        # A text that grows too long while it is made: the last token is not read.
        self.assertEqual(made(60, 5), "")
        self.assertRegex(made(60, 6), warning(65))
        # In a conversation it is said once.
        said = generate("--chat", "--tokens", "20", *GREEDY, given=b"x\n" * 9, model="short.gguf").stderr.decode()
        self.assertRegex(CUT.sub("", said), warning("[0-9]+"))
        with open("book.txt", "w", encoding="utf-8") as file:
            file.write("x" * 65)
        words = ["ppl", "--model", "short.gguf", "--file", "book.txt"]
        self.assertRegex(run(*words).stderr.decode(), warning(65))
        self.assertEqual(run(*words, "--context", "64").stderr, b"")
        self.assertEqual(run(*words, *WINDOW).stderr, b"")

    def test_bytes_that_are_no_text(self):
        with open("bad.txt", "wb") as file:
            file.write(b"good \xc3\xa4 bad \xff\xc3(")
        self.refused(r"bad\.txt: byte 12 \(0xff\) is not UTF-8.*--lossy", "--file", "bad.txt")
        self.refused(r"standard input: byte 1 ", "--file", "-", given=b"a\x80")
        self.refused(r"--prompt: byte 2 ", "--prompt", b"ab\xe2\x82")
        with open("repaired.txt", "w", encoding="utf-8") as file:
            file.write("good ä bad \ufffd\ufffd(")
        self.assertEqual(out("--file", "bad.txt", "--lossy", "--tokens", "9"),
                         out("--file", "repaired.txt", "--tokens", "9"))

    def test_wrong_usage(self):
        for pattern, words in [
            ("there is nothing to read", []),
            ("--system belongs to a conversation", ["--prompt", "a", "--system", "b"]),
            ("--no-think belongs to a conversation", ["--prompt", "a", "--no-think"]),
            ("--json prints one answer", ["--chat", "--json"]),
            ("--tokens 0: a conversation needs answers", ["--chat", "--tokens", "0"]),
            ("--temperature hot: give a number from 0 to", ["--prompt", "a", "--temperature", "hot"]),
            ("--temperature -1: give", ["--prompt", "a", "--temperature", "-1"]),
            ("--temperature nan: give", ["--prompt", "a", "--temperature", "nan"]),
            ("--temperature : give", ["--prompt", "a", "--temperature", ""]),
            ("--top-p 1.5: give a number from 0 to 1", ["--prompt", "a", "--top-p", "1.5"]),
            ("--top-p 0x1: give", ["--prompt", "a", "--top-p", "0x1"]),
            ("--repetition-penalty 0: give", ["--prompt", "a", "--repetition-penalty", "0"]),
            ("--stop is given more than", ["--prompt", "a"] + ["--stop", "x"] * 33),
            ("did you mean --temperature", ["--temprature", "1"]),
        ]:
            with self.subTest(words=words):
                self.refused(pattern, *words, code=2)
        self.refused("the text is empty", "--prompt", "")
        self.refused("cannot open none.txt", "--file", "none.txt")
        self.refused("a stop string is empty", "--prompt", "a", "--stop", "")
        self.refused("none.gguf", "--prompt", "a", model="none.gguf")
        self.refused("folder none", "--prompt", "a", "--save-session", "none/s")

    def test_ctrl_c(self):
        words = ["--prompt", "A story.", *SAMPLED, *WINDOW]
        process = subprocess.Popen(
            [PROGRAM, "generate", "--model", "plain.gguf", *words, "--tokens", "1G", "--save-session", "s"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            preexec_fn=receptive)
        try:
            first = process.stdout.read(100)
            process.send_signal(signal.SIGINT)
            rest, message = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
        self.assertEqual(process.returncode, 130, message)
        self.assertRegex(message.decode(), "^rosatune generate: interrupted; the session is saved in s\n$")
        self.assertEqual(os.listdir(".").count("s"), 1)
        before = (first + rest).decode()
        result = json.loads(out("--load-session", "s", "--json", "--tokens", "20", *SAMPLED, *WINDOW))
        made = result["context"] - len("A story.")
        self.assertEqual(out(*words, "--tokens", str(made)), before + result["text"])


class Sessions(Base):
    def test_resumes_as_if_nothing_had_been(self):
        for options in [], SAMPLED, WINDOW, SAMPLED + WINDOW:
            words = ["--prompt", "A story of a ferryman.", *options]
            whole = out(*words, "--tokens", "50")
            for made in 0, 1, 20:
                with self.subTest(options=options, made=made):
                    text = out(*words, "--tokens", str(made), "--save-session", "s")
                    text += out("--load-session", "s", "--tokens", "10", "--save-session", "s", *options)
                    text += out("--load-session", "s", "--tokens", str(40 - made), "--prompt", "", *options)
                    self.assertEqual(text, whole)

    def test_brings_its_own_window(self):
        for options in WINDOW, [*WINDOW, "--global-layers", "1"]:
            whole = out("--prompt", "A story of a ferryman.", "--tokens", "50", *options)
            text = out("--prompt", "A story of a ferryman.", "--tokens", "20", "--save-session", "s", *options)
            text += out("--load-session", "s", "--tokens", "10", "--save-session", "s")
            text += out("--load-session", "s", "--tokens", "20", *options)
            self.assertEqual(text, whole)
            said = chat("--load-session", "s", lines=["Who?"])
            self.assertEqual(said, chat("--load-session", "s", *options, lines=["Who?"]))

    def test_brings_its_own_adapter(self):
        write_adapter("adapter")
        words = ["--prompt", "A story of a ferryman.", "--adapter", "adapter"]
        whole = out(*words, "--tokens", "50")
        self.assertNotEqual(whole, out("--prompt", "A story of a ferryman.", "--tokens", "50", *WINDOW))
        text = out(*words, "--tokens", "20", "--save-session", "s")
        text += out("--load-session", "s", "--tokens", "10", "--save-session", "s")
        self.assertEqual(text + out("--load-session", "s", "--tokens", "20"), whole)
        # One that was moved has to be named; another one is refused.
        os.rename("adapter", "moved")
        self.refused("the session s was made with the adapter .*/adapter, which is not there; name it by --adapter",
                     "--load-session", "s", "--tokens", "1")
        self.assertEqual(text + out("--load-session", "s", "--tokens", "20", "--adapter", "moved"), whole)
        write_adapter("other", seed=2)
        self.refused("s: .*another adapter", "--load-session", "s", "--tokens", "1", "--adapter", "other")

    def test_names_in_an_adapter_are_shown_and_not_obeyed(self):
        write_adapter("adapter", name="evil\x1b]0;title\x07\x9b31m")
        said = generate("--prompt", "A story.", "--tokens", "1", "--adapter", "adapter").stderr.decode()
        self.assertIn(r"evil\x1b]0;title\a\u{9b}31m", said)
        self.assertNotRegex(said, "[\x00-\x09\x0b-\x1f\x7f-\x9f]")
        described = run("adapter", "info", "adapter").stdout.decode()
        self.assertIn(r"evil\x1b]0;title\a\u{9b}31m", described)
        self.assertNotRegex(described, "[\x00-\x09\x0b-\x1f\x7f-\x9f]")

    def test_goes_on_with_more_text(self):
        for options in [], WINDOW:
            whole = out("--prompt", "A story of a ferryman.", "--tokens", "30", *options)
            self.assertEqual(out("--prompt", "A story", "--tokens", "0", "--save-session", "s", *options), "")
            more = json.loads(out("--load-session", "s", "--prompt", " of a ferryman.", "--tokens", "30", "--json",
                                  *options))
            self.assertEqual(more["text"], whole)
            self.assertEqual(more["tokens_read"], len("y of a ferryman."))  # the last letter had not been read

    def test_after_the_end(self):
        made = json.loads(out("--prompt", "A story.", "--tokens", "500", "--json", "--save-session", "s",
                              model="ends.gguf"))
        result = generate("--load-session", "s", model="ends.gguf")
        self.assertEqual(result.stdout, b"")
        self.assertIn(b"had ended this text", result.stderr)
        text = "A story." + made["text"] + " More."
        self.assertEqual(out("--load-session", "s", "--prompt", " More.", "--tokens", "9", model="ends.gguf"),
                         out("--prompt", text, "--tokens", "9", model="ends.gguf"))

    def test_refuses_what_does_not_fit(self):
        generate("--prompt", "A story of a ferryman.", "--tokens", "5", "--save-session", "s", *WINDOW)
        load = ["--load-session", "s", "--tokens", "1"]
        self.refused("--window 9: the session s was made with 8; leave the option out", *load, "--window", "9")
        self.refused("--sinks 3: the session s was made with 2", *load, "--sinks", "3")
        self.refused("--global-layers 1: the session s was made with 0", *load, "--global-layers", "1")
        self.refused("--adapter x: the session s was made without an adapter", *load, "--adapter", "x")
        self.refused("s: .*another model", *load, *WINDOW, model="other.gguf")
        self.refused("plain.gguf is not a session", "--load-session", "plain.gguf", *WINDOW)
        self.refused("none", "--load-session", "none", *WINDOW)
        out(*load, *WINDOW)

    def test_refuses_what_was_cut_or_altered(self):
        generate("--prompt", "A story of a ferryman.", "--tokens", "5", "--save-session", "s", *WINDOW)
        with open("s", "rb") as file:
            whole = file.read()
        rng = random.Random(3)
        for _ in range(12):
            size = rng.randrange(1, len(whole))
            place = rng.randrange(len(whole))
            for bad in whole[:size], whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1:]:
                with open("bad", "wb") as file:
                    file.write(bad)
                self.refused("bad", "--load-session", "bad", "--tokens", "1", *WINDOW)
        with open("bad", "wb") as file:
            file.write(whole + bytes(8))
        self.refused("bad", "--load-session", "bad", "--tokens", "1", *WINDOW)

    def test_a_failed_save_leaves_the_old_session(self):
        with open("s", "w", encoding="utf-8") as file:
            file.write("old")
        script = 'trap "" XFSZ; ulimit -f 8; exec "$@"'
        result = subprocess.run(["bash", "-c", script, "bash", PROGRAM, "generate", "--model", "plain.gguf",
                                 "--prompt", "A story." * 9, "--tokens", "3", "--save-session", "s"],
                                stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn(b"File too large", result.stderr)
        with open("s", encoding="utf-8") as file:
            self.assertEqual(file.read(), "old")
        self.assertEqual([name for name in os.listdir(".") if not name.endswith(".gguf")], ["s"])


# ------------------------------------------------------------------------------------------------------------ chats


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


class Chat(Base):
    asked = ["Who are you?", "And who am I?", "Farewell."]

    def test_reads_exactly_the_conversation(self):
        for options in WINDOW, WINDOW + ["--repetition-penalty", "1.3", "--repeat-last", "0"]:
            self.assertEqual(chat(*options, lines=self.asked), expected(self.asked, *options))
        self.assertEqual(chat(*WINDOW, "--system", "Be brief.", lines=self.asked),
                         expected(self.asked, *WINDOW, system="Be brief."))
        self.assertEqual(chat(*WINDOW, "--prompt", self.asked[0], lines=self.asked[1:]), expected(self.asked, *WINDOW))

    def test_drops_what_a_later_turn_does_not_see(self):
        # The empty thought that asks for an answer at once stands only before the last one.
        opening = OPEN + "<think>\n\n</think>\n\n"
        self.assertEqual(chat(*WINDOW, "--no-think", lines=self.asked, model="thinks.gguf"),
                         expected(self.asked, *WINDOW, model="thinks.gguf", opening=opening))
        self.assertEqual(chat(*WINDOW, lines=self.asked, model="thinks.gguf"),
                         expected(self.asked, *WINDOW, model="thinks.gguf"))

    def test_stop_strings_are_not_said(self):
        answers = chat(*WINDOW, lines=self.asked[:1])
        stop = answers[5:7]
        words = [*WINDOW, "--stop", stop]
        self.assertEqual(chat(*words, lines=self.asked), expected(self.asked, *words))

    def test_ends_with_the_models_end(self):
        self.assertEqual(chat(*WINDOW, "--tokens", "500", lines=self.asked, model="ends.gguf"),
                         expected(self.asked, *WINDOW, "--tokens", "500", model="ends.gguf"))

    def test_a_document_comes_first(self):
        document = "There was a ferryman.\nHe rang a bell."
        with open("book.txt", "w", encoding="utf-8") as file:
            file.write(document)
        asked = [document + "\n\n" + self.asked[0], *self.asked[1:]]
        self.assertEqual(chat(*WINDOW, "--file", "book.txt", lines=self.asked), expected(asked, *WINDOW))
        with open("zero.txt", "wb") as file:
            file.write(b"ab\0c")
        self.refused("zero.txt has a byte 0 at 2", "--chat", "--file", "zero.txt")

    def test_commands(self):
        answers = expected(self.asked[:2], *WINDOW)
        one = answers.splitlines(True)[0] if answers.count("\n") == 2 else None
        self.assertEqual(chat(*WINDOW, lines=self.asked[:2] + ["/quit", "unheard"]), answers)
        self.assertEqual(chat(*WINDOW, lines=["", *self.asked[:2], "/reset", *self.asked[:2]]), answers + answers)
        self.assertEqual(chat(*WINDOW, lines=["/etc/hosts?"]), expected(["/etc/hosts?"], *WINDOW))
        for line, pattern in [("/sing now", b"/sing is not known"), ("/save", b"/save needs a file"),
                              ("/save s", b"nothing has been said"), ("a\xffb", b"")]:
            result = generate("--chat", *WINDOW, given=line.encode("latin-1") + b"\n")
            self.assertEqual(result.stdout, b"")
            self.assertIn(pattern, result.stderr)
        if one:
            self.assertTrue(answers.startswith(one))

    def test_sessions(self):
        for model, options in [("plain.gguf", WINDOW), ("thinks.gguf", WINDOW + ["--no-think"]),
                               ("plain.gguf", WINDOW + SAMPLED), ("plain.gguf", WINDOW + ["--stop", "a"])]:
            with self.subTest(model=model, options=options):
                whole = chat(*options, lines=self.asked, model=model)
                begun = chat(*options, "--save-session", "s", lines=self.asked[:1], model=model)
                more = chat(*options, "--load-session", "s", lines=self.asked[1:2] + ["/save t"], model=model)
                rest = chat(*options, "--load-session", "t", lines=self.asked[2:], model=model)
                self.assertEqual(begun + more + rest, whole)
        self.refused("the session has its own beginning", "--chat", "--load-session", "s", "--system", "x", code=2)

    def test_a_read_text_can_be_talked_about(self):
        generate("--prompt", "There was a ferryman. ", "--tokens", "0", "--save-session", "s", *WINDOW)
        said = chat(*WINDOW, "--load-session", "s", lines=self.asked[:1])
        text = "There was a ferryman. " + message("user", self.asked[0]) + OPEN
        self.assertEqual(said, out("--prompt", text, "--tokens", "12", *WINDOW) + "\n")

    def test_needs_a_template(self):
        self.refused("no chat template that is known here; use 'rosatune generate'", "--chat", model="silent.gguf")

    def test_has_a_command_of_its_own(self):
        given = "".join(line + "\n" for line in self.asked).encode()
        result = run("chat", "-m", "plain.gguf", "-n", "12", *GREEDY, *WINDOW, given=given)
        self.assertEqual(result.stdout.decode(), expected(self.asked, *WINDOW))
        self.assertEqual(len(CUT.findall(result.stderr.decode())), 3)
        self.assertIn(b"rosatune chat: --tokens 0: ", run("chat", "-m", "plain.gguf", "-n", "0", code=2).stderr)
        self.assertIn(b"unknown option --json", run("chat", "-m", "plain.gguf", "--json", code=2).stderr)

    def test_an_answer_that_the_model_ends_is_not_marked(self):
        said = generate("--chat", "--tokens", "500", *GREEDY, *WINDOW, given=b"Who?\n", model="ends.gguf")
        self.assertEqual(said.stderr, b"")

    def test_draws_by_default(self):
        lines = self.asked[:1]
        given = (lines[0] + "\n").encode()
        plain = generate("--chat", "--tokens", "12", *WINDOW, given=given).stdout.decode()
        defaults = ["--temperature", "0.6", "--top-k", "40", "--top-p", "0.9", "--repetition-penalty", "1.05"]
        self.assertEqual(plain, chat(*WINDOW, *defaults, lines=lines))
        self.assertNotEqual(plain, chat(*WINDOW, lines=lines))
        other = generate("--chat", "--tokens", "12", *WINDOW, "--seed", "1", given=given).stdout.decode()
        self.assertNotEqual(plain, other)

    def test_draws_as_the_model_advises(self):
        given = (self.asked[0] + "\n").encode()
        advised = generate("--chat", "--tokens", "12", *WINDOW, given=given, model="advised.gguf").stdout.decode()
        words = ["--temperature", "2", "--top-k", "7", "--top-p", "0.9", "--repetition-penalty", "1.05"]
        self.assertEqual(advised, chat(*WINDOW, *words, lines=self.asked[:1]))

    def test_help(self):
        said = generate("--chat", given=b"/help\n")
        for word in b"/help", b"/quit", b"/reset", b"/save FILE":
            self.assertIn(word, said.stderr)
        self.assertEqual(said.stdout, b"")


class Terminal(Base):
    """A conversation by hand."""

    def setUp(self):
        super().setUp()
        self.process = None

    def tearDown(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            os.close(self.master)
            self.process = None

    def start(self, *words, model="plain.gguf", terminal="dumb"):
        """A chat, or with `words` that begin with a command, that. Lines can be edited where the terminal can do it."""
        self.master, slave = pty.openpty()

        def controlling():
            os.setsid()
            receptive()
            import fcntl
            import termios
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        if not words or words[0].startswith("-"):
            words = ["generate", "--model", model, "--chat", *WINDOW, *GREEDY, *words]
        environment = {**os.environ, "TERM": terminal, "XDG_STATE_HOME": os.getcwd() + "/state", "LC_ALL": "C.UTF-8"}
        self.process = subprocess.Popen([PROGRAM, *words], stdin=slave, stdout=slave, stderr=slave, env=environment,
                                        preexec_fn=controlling)
        os.close(slave)
        self.screen = ""

    def type(self, text):
        os.write(self.master, text.encode())

    def wait(self, wanted):
        """Until the screen shows something new that ends with, or is, `wanted`."""
        until = time.monotonic() + LIMIT
        while wanted not in self.screen:
            self.assertLess(time.monotonic(), until, f"no {wanted!r} on the screen: {self.screen[-2000:]!r}")
            if select.select([self.master], [], [], 1)[0]:
                try:
                    self.screen += os.read(self.master, 4096).decode(errors="replace")
                except OSError:
                    self.assertIn(wanted, self.screen)
        before, _, self.screen = self.screen.partition(wanted)
        return before

    def finish(self, code):
        """Until the program has ended, and all that it has left on the screen."""
        until = time.monotonic() + LIMIT
        while True:
            self.assertLess(time.monotonic(), until, "does not end")
            over = self.process.poll() is not None
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    self.screen += os.read(self.master, 4096).decode(errors="replace")
                    continue
                except OSError:
                    pass
            if over:
                break
        self.assertEqual(self.process.returncode, code, self.screen)

    def test_turns(self):
        self.start("--tokens", "12")
        answers = expected(["Who are you?"], *WINDOW).replace("\n", "\r\n")
        self.wait("> ")
        self.type("Who are you?\n")
        self.wait("Who are you?\r\n")
        said = self.wait("> ")
        self.assertTrue(said.startswith(answers), said)
        self.assertRegex(said[len(answers):], r"\A\[cut after 12 tokens; --tokens N allows more\]\r\n"
                                              r"\[read 31 tokens, [0-9]+/s; wrote 12, [0-9.]+/s\]\r\n\Z")
        self.type("/help\n")
        self.wait("/save FILE")
        self.wait("> ")
        self.type("/quit\n")
        self.finish(0)
        self.assertRegex(self.screen, "read [0-9]+ tokens .*made 12 .*memory: attention")

    def test_a_turn_costs_its_own_tokens(self):
        def tokens(text):
            return len(re.sub(r"<[|a-z_/]+>", "S", text))

        asked = ["Who are you?", "And who am I?"]
        prompts = [message("user", question) + OPEN for question in asked]
        # The last token of an answer is read with the next turn, as is the end of the message and its line.
        plain = tokens(prompts[0]) + 3 + tokens(prompts[1])
        # An answer after an empty thought is read again without the thought.
        opening = "<think>\n\n</think>\n\n"
        thinks = tokens(prompts[0] + opening) + 12 + 2 + tokens(prompts[1] + opening)
        for model, options, read in [("plain.gguf", [], plain), ("thinks.gguf", ["--no-think"], thinks)]:
            self.start("--tokens", "12", *options, model=model)
            for question in asked:
                self.wait("> ")
                self.type(question + "\n")
            self.wait("> ")
            self.type("/quit\n")
            self.finish(0)
            self.assertIn(f"read {read} tokens", self.screen)
            self.tearDown()

    def test_ctrl_c_stops_the_answer(self):
        self.start("--tokens", "1G", "--save-session", "s")
        self.wait("> ")
        self.type("Who are you?\n")
        self.wait("Who are you?\r\n")
        while len(self.screen) < 200:
            self.screen += os.read(self.master, 4096).decode(errors="replace")
        self.type("\x03")
        self.wait("> ")
        self.type("Are you there?\n")
        self.wait("Are you there?\r\n")
        while len(self.screen) < 200:
            self.screen += os.read(self.master, 4096).decode(errors="replace")
        self.type("\x03")
        self.wait("> ")
        self.type("\x03")
        self.wait("Ctrl-C again")
        self.wait("> ")
        self.type("\x03")
        self.finish(130)
        self.assertIn("s", os.listdir("."))

    def test_sigterm_ends_while_a_document_is_read(self):
        with open("long.txt", "w", encoding="utf-8") as file:
            file.write("A story of a ferryman. " * 400000)  # far from read when the bar is first drawn
        self.start("--file", "long.txt")
        self.wait("reading [")
        self.process.send_signal(signal.SIGTERM)
        self.finish(143)

    def test_ctrl_d_ends(self):
        self.start()
        self.wait("> ")
        self.type("\x04")
        self.finish(0)

    def test_escapes_are_shown_and_not_obeyed(self):
        words = ["generate", "--model", "escapes.gguf", "--prompt", "Say it.", "--tokens", "80", *SAMPLED, *WINDOW]
        raw = run(*words).stdout
        for byte in b"\x1b\x07\r\x7f\t":
            self.assertIn(byte, raw)
        self.start(*words)
        self.finish(0)
        shown = raw.decode()
        for code in [*range(9), *range(11, 32), 127]:
            named = {7: r"\a", 8: r"\b", 11: r"\v", 12: r"\f", 13: r"\r"}
            shown = shown.replace(chr(code), named.get(code, rf"\x{code:02x}"))
        self.assertTrue(self.screen.startswith(shown.replace("\n", "\r\n")), self.screen)
        self.tearDown()
        # The same in the text of tokens that are given.
        self.start("tokenize", "--model", "plain.gguf", "--decode", "--text", "27 93 65 194 155 49 10")
        self.finish(0)
        self.assertEqual(self.screen, "\\x1b]A\\u{9b}1\r\n")

    def test_lines_are_edited_and_remembered(self):
        if "libedit: yes" not in run("--version").stdout.decode():
            self.skipTest("this build has no libedit")
        answers = expected(["Who are you?"], *WINDOW).replace("\n", "\r\n")
        self.start("--tokens", "12", terminal="xterm")
        self.wait("> ")
        # Typed with a mistake; the left arrow and a letter more mend it.
        self.type("Who ar you?\x1b[D\x1b[D\x1b[D\x1b[D\x1b[De\r")
        self.assertIn(answers, self.wait("[cut after"))
        self.wait("> ")
        self.type("\x03")  # an interrupt at the prompt is noticed without a key more
        self.wait("Ctrl-C again")
        self.wait("> ")
        self.type("é\x7f\x04")  # a letter of two bytes is one character
        self.finish(0)
        with open("state/rosatune/chat_history", encoding="utf-8") as file:
            self.assertEqual(file.read(), "Who are you?\n")
        self.assertEqual(os.stat("state/rosatune/chat_history").st_mode & 0o777, 0o600)
        self.tearDown()
        # The next conversation finds it by the up arrow.
        self.start("--tokens", "12", terminal="xterm")
        self.wait("> ")
        self.type("\x1b[A\r")
        self.assertIn(answers, self.wait("[cut after"))
        self.wait("> ")
        self.type("/quit\r")
        self.finish(0)

    def test_a_history_is_bounded(self):
        if "libedit: yes" not in run("--version").stdout.decode():
            self.skipTest("this build has no libedit")
        os.makedirs("state/rosatune")
        with open("state/rosatune/chat_history", "w", encoding="utf-8") as file:
            file.write("".join(f"line {i}\n" for i in range(2001)))
        self.start(terminal="xterm")
        self.wait("> ")
        self.type("\x04")
        self.finish(0)
        with open("state/rosatune/chat_history", encoding="utf-8") as file:
            self.assertEqual(file.read(), "".join(f"line {i}\n" for i in range(1001, 2001)))


# -------------------------------------------------------------------------------------------------------- perplexity


def save_tokens(path, tokens):
    head = "{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }" % len(tokens)
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
        file.write(struct.pack(f"<{len(tokens)}i", *tokens))


THETA = [[-3 + 0.7 * length for length in range(13)], [-4 + 0.5 * length for length in range(13)]]


def write_pointer(path, delay, theta=None):
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"format": 1, "delay": delay, "links": 2, "theta": theta or THETA}, file)


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


class Pointer(Base):
    """generate and chat with a pointer."""

    prompt = "the old ferryman sang of the old river and of the old bell. the old ferry"
    options = [*WINDOW, "--pointer", "p.json"]

    def setUp(self):
        super().setUp()
        write_pointer("p.json", delay=8)

    def test_the_likeliest_of_the_mixture(self):
        result = json.loads(out("--prompt", self.prompt, "--tokens", "12", "--json", *self.options))
        tokens, copied = list(self.prompt.encode()), 0
        for token in result["tokens"]:
            row = logits(tokens, *WINDOW)[-1]
            whole = math.log(math.fsum(math.exp(x) for x in row))
            mixed = [mix(whole - x, [*tokens, i], len(tokens) - 1, 8) for i, x in enumerate(row)]
            self.assertEqual(token, min(range(len(row)), key=mixed.__getitem__))
            copied += token != max(range(len(row)), key=row.__getitem__)
            tokens.append(token)
        self.assertGreater(copied, 3, "the pointer must have changed something")
        self.assertEqual(result["pointer"], "p.json")
        self.assertGreater(result["pointer_bytes"], 0)
        plain = json.loads(out("--prompt", self.prompt, "--tokens", "12", "--json", *WINDOW, "--pointer", "none"))
        self.assertEqual((plain["pointer"], plain["pointer_bytes"]), (None, 0))
        self.assertNotEqual(plain["tokens"], result["tokens"])

    def test_sessions(self):
        for sampling in [], SAMPLED:
            words = ["--prompt", self.prompt, *self.options, *sampling]
            whole = out(*words, "--tokens", "40")
            text = out(*words, "--tokens", "15", "--save-session", "s")
            text += out("--load-session", "s", "--tokens", "10", "--save-session", "s", *sampling)
            self.assertEqual(text + out("--load-session", "s", "--tokens", "15", *sampling), whole)
        # a pointer is no part of what was read: another one, or none, may continue
        plain = out("--load-session", "s", "--tokens", "15", "--pointer", "none")
        self.assertNotEqual(plain, out("--load-session", "s", "--tokens", "15"))
        out("--load-session", "s", "--tokens", "0", "--pointer", "none", "--save-session", "t")
        self.assertEqual(out("--load-session", "t", "--tokens", "15"), plain)
        os.rename("p.json", "moved.json")
        self.refused("made with the pointer .*/p.json, which is not there; name it by --pointer",
                     "--load-session", "s", "--tokens", "1")
        out("--load-session", "s", "--tokens", "1", "--pointer", "moved.json")

    def test_chat(self):
        asked = ["Who sang of the river?", "The old one? Who sang of the river?", "And the bell?"]
        for model in "plain.gguf", "thinks.gguf":
            said = chat(*self.options, *GREEDY, lines=asked, model=model)
            begun = chat(*self.options, *GREEDY, "--save-session", "s", lines=asked[:1], model=model)
            rest = chat(*GREEDY, "--load-session", "s", lines=asked[1:], model=model)
            self.assertEqual(begun + rest, said)
            self.assertEqual(said, expected(asked, *self.options, model=model))


class PointerFit(Base):
    """rosatune pointer fit."""

    WINDOW = ["--window", "4", "--sinks", "1"]

    def setUp(self):
        super().setUp()
        rng = random.Random(5)
        words = ["ferry", "bell", "river", "herring", "water", "the ", "old "]
        for name in "one.txt", "two.txt":
            with open(name, "w", encoding="utf-8") as file:
                file.write(" ".join(rng.choice(words) for _ in range(200)))

    def fit(self, *words, code=0):
        return run("pointer", "fit", "--model", "plain.gguf", *words, code=code)

    def test_fits(self):
        write_adapter("adapter")
        for more in [], ["--links", "1", "--plain"], ["--adapter", "adapter"]:
            words = [*self.WINDOW, "--context", "64", "--positions", "1100", "--out", "p.json", *more]
            said = self.fit(*words, "--json", "one.txt", "two.txt")
            result = json.loads(said.stdout)
            self.assertEqual((result["delay"], result["window"], result["context"]), (4, 4, 64))
            self.assertEqual(result["fitted"] + result["held_back"], result["pieces"] * 48)
            self.assertLess(result["after"]["ppl"], 0.7 * result["before"]["ppl"])
            with open("p.json", encoding="utf-8") as file:
                pointer = json.load(file)
            self.assertEqual((pointer["format"], pointer["delay"]), (1, 4))
            self.assertEqual(pointer["links"], 1 if more[:1] == ["--links"] else 8)
            self.assertEqual("confidence" in pointer, "--plain" not in more)
            self.assertEqual(len(pointer.get("agreement", [])), 0 if "--plain" in more else 8)
            self.assertEqual([len(row) for row in pointer["theta"]], [13] * pointer["links"])
            self.assertIn("with the pointer", self.fit(*words, "one.txt", "two.txt").stdout.decode())
            with open("p.json", encoding="utf-8") as file:
                self.assertEqual(json.load(file), pointer, "the same every time")
        # in an adapter's folder it is used by itself
        os.rename("p.json", "adapter/pointer.json")
        ppl = ["ppl", "--model", "plain.gguf", "--adapter", "adapter", "--file", "one.txt", "--json", *self.WINDOW]
        self.assertLess(json.loads(run(*ppl).stdout)["nll"], json.loads(run(*ppl, "--pointer", "none").stdout)["nll"])

    def test_pieces_take_turns(self):
        """Held back is what comes last: pieces of both files, in turn."""
        options = [*self.WINDOW, "--context", "64", "--out", "p.json", "--json"]
        both = json.loads(self.fit(*options, "one.txt", "two.txt", "--positions", "1100").stdout)
        self.assertEqual(both["pieces"], 23)
        every = json.loads(self.fit(*options, "one.txt", "two.txt").stdout)
        tokens = [os.path.getsize(name) for name in ("one.txt", "two.txt")]
        self.assertEqual(every["pieces"], sum(count // 64 for count in tokens))

    def test_refusals(self):
        for pattern, words in [
            (b"add --window", ["one.txt"]),
            (b"--context 16: positions from four windows", [*self.WINDOW, "--context", "16", "one.txt"]),
            (b"no text has a whole piece of 102400", [*self.WINDOW, "--context", "100k", "one.txt"]),
            (b"there are 48 positions", [*self.WINDOW, "--context", "64", "short.txt"]),
            (b"--delay 3: attention still sees", [*self.WINDOW, "--delay", "3", "one.txt"]),
            (b"gone.txt", [*self.WINDOW, "gone.txt"]),
        ]:
            with open("short.txt", "w", encoding="utf-8") as file:
                file.write("the old bell " * 7)
            said = self.fit("--out", "p.json", *words, code=1).stderr
            self.assertIn(pattern, said)
            self.assertTrue(said.startswith(b"rosatune pointer fit: "))
            self.assertFalse(os.path.exists("p.json"))
        self.assertIn(b"--links 17", self.fit("--out", "p", "--links", "17", "one.txt", code=2).stderr)
        self.assertIn(b"folder none", self.fit("--out", "none/p", *self.WINDOW, "one.txt", code=1).stderr)


class Perplexity(Base):
    text = "The ferryman walks down to the water and rings the bell three times. Nobody hears it but the herring."

    def ppl(self, *words, code=0):
        return run("ppl", "--model", "plain.gguf", "--file", "book.txt", *words, code=code)

    def setUp(self):
        super().setUp()
        with open("book.txt", "w", encoding="utf-8") as file:
            file.write(self.text)

    def check(self, words, pieces, skip=1, options=()):
        scored = [x for piece in pieces for x in losses(list(piece.encode()), *options)[skip - 1:]]
        mean = math.fsum(scored) / len(scored)
        texts = set()
        for more in [], ["--batch", "3"], ["--batch", "2", "--chunk", "5", "--threads", "1"]:
            result = json.loads(self.ppl("--json", *words, *options, *more).stdout)
            self.assertAlmostEqual(result["nll"], mean, delta=1e-6 * abs(mean))
            self.assertAlmostEqual(result["perplexity"], math.exp(mean), delta=1e-5 * math.exp(mean))
            self.assertEqual((result["tokens"], result["pieces"]), (len(scored), len(pieces)))
            texts.add((result["nll"], result["perplexity"]))
        self.assertEqual(len(texts), 1)

    def test_against_the_logits(self):
        text = self.text
        self.check([], [text])
        self.check([], [text], options=WINDOW)
        self.check(["--context", "30"], [text[i: i + 30] for i in range(0, len(text), 30)], options=WINDOW)
        self.check(["--context", "30", "--skip", "10"], [text[:30], text[30:60], text[60:90], text[90:]], skip=10)
        # A rest of which nothing would be scored is left out.
        self.check(["--context", "30", "--skip", "12"], [text[:30], text[30:60], text[60:90]], skip=12)
        self.check(["--context", "20", "--tokens", "50"], [text[:20], text[20:40], text[40:50]])

    def test_words(self):
        said = self.ppl("--context", "32", *WINDOW).stdout.decode()
        self.assertRegex(said, r"perplexity +[0-9.]+ ")
        self.assertRegex(said, "in 4 pieces of 32")
        self.assertRegex(said, "the last 8 positions, and the first 2")
        result = json.loads(self.ppl("--json", *WINDOW).stdout)
        self.assertEqual((result["context"], result["window"], result["sinks"]), (len(self.text), 8, 2))
        self.assertGreater(result["tokens_per_second"], 0)

    def test_what_cannot_be_measured(self):
        for pattern, words in [(b"leave nothing to score", ["--context", "4", "--skip", "4"]),
                               (b"leave nothing to score", ["--tokens", "1"])]:
            self.assertIn(pattern, self.ppl(*words, code=1).stderr)
        self.assertIn(b"--skip 0: give", self.ppl("--skip", "0", code=2).stderr)
        with open("book.txt", "wb") as file:
            file.write(b"abc\xff")
        self.assertIn(b"book.txt: byte 3 (0xff) is not UTF-8", self.ppl(code=1).stderr)
        self.ppl("--lossy")
        open("book.txt", "wb").close()
        self.assertIn(b"rosatune ppl: ", self.ppl(code=1).stderr)


def is_far(tokens, t, window):
    """Whether tokens t-2..t stood before in that order, the last time at this distance or more."""
    before = [p for p in range(2, t) if tokens[p - 2 : p + 1] == tokens[t - 2 : t + 1]]
    return bool(before) and t - before[-1] >= window


class Recall(Base):
    """rosatune recall against the losses of single tokens and far tokens by their definition."""

    WINDOW, CONTEXT = 4, 40

    def setUp(self):
        super().setUp()
        write_adapter("adapter")
        with open("book.txt", "w", encoding="utf-8") as file:
            file.write("the same words, the same words. " * 9)

    def recall(self, *words, code=0):
        return run("recall", "--model", "plain.gguf", "--context", str(self.CONTEXT), *words, code=code)

    def means(self, pieces, *options, pointer=None):
        """Far and rest, by brute force."""
        sums = {True: [], False: []}
        for piece in pieces:
            each = losses(piece, *options, pointer=pointer)
            for t in range(4 * self.WINDOW, len(piece)):
                sums[is_far(piece, t, self.WINDOW)].append(each[t - 1])
        return {name: statistics.fmean(sums[far]) for name, far in (("far", True), ("rest", False))}

    def test_conditions(self):
        texts = {"one.txt": "abcabd. xyz abc " * 8, "two.txt": "the cat and the hat and the bat. " * 4}
        pieces = []
        for name, text in texts.items():
            with open(name, "w", encoding="utf-8") as file:
                file.write(text)
            tokens = json.loads(run("tokenize", "--model", "plain.gguf", "--file", name, "--json").stdout)["ids"]
            pieces += [tokens[i : i + self.CONTEXT] for i in range(0, len(tokens) - self.CONTEXT + 1, self.CONTEXT)]
        window = ["--window", str(self.WINDOW), "--sinks", "1"]
        result = json.loads(self.recall(*window, "--adapter", "adapter", *texts, "--json").stdout)
        self.assertEqual(list(result["conditions"]), ["global", "window", "adapter", "off", "random"])
        self.assertGreater(result["far_share"], 0.1)
        for name, options in ("global", []), ("window", window), ("adapter", ["--adapter", "adapter", *window]):
            for part, mean in self.means(pieces, *options).items():
                self.assertAlmostEqual(result["conditions"][name][part], mean, places=4, msg=f"{name} {part}")
        conditions = {name: (c["far"], c["rest"]) for name, c in result["conditions"].items()}
        self.assertEqual(conditions["off"], conditions["window"])
        self.assertEqual(len(set(conditions.values())), 4, "the adapter and random reads must differ")
        self.assertEqual(list(result["books"]), list(texts))
        self.assertIn("the same, reading at random", self.recall(*window, "--adapter", "adapter", *texts).stdout.decode())

    def test_pointer(self):
        """Both conditions with a pointer, by the equation; with the adapter's folder, and by name."""
        with open("long.txt", "w", encoding="utf-8") as file:
            file.write("abcabd. xyz abc " * 8)
        window = ["--window", str(self.WINDOW), "--sinks", "1"]
        write_pointer("adapter/pointer.json", delay=self.WINDOW)
        whole = self.recall(*window, "--adapter", "adapter", "long.txt", "--json")
        self.assertIn(b"note: using the pointer in adapter", whole.stderr)
        result = json.loads(whole.stdout)
        self.assertEqual(result["pointer"], "adapter")
        self.assertEqual(
            list(result["conditions"]),
            ["global", "window", "adapter", "off", "random", "pointer", "adapter+pointer"],
        )
        tokens = json.loads(run("tokenize", "--model", "plain.gguf", "--file", "long.txt", "--json").stdout)["ids"]
        pieces = [tokens[i : i + self.CONTEXT] for i in range(0, len(tokens) - self.CONTEXT + 1, self.CONTEXT)]
        for name, options in ("pointer", window), ("adapter+pointer", ["--adapter", "adapter", *window]):
            for part, mean in self.means(pieces, *options, pointer=self.WINDOW).items():
                self.assertAlmostEqual(result["conditions"][name][part], mean, places=4, msg=f"{name} {part}")
        self.assertNotEqual(result["conditions"]["pointer"]["far"], result["conditions"]["window"]["far"])
        alone = json.loads(self.recall(*window, "--pointer", "adapter/pointer.json", "long.txt", "--json").stdout)
        self.assertEqual(list(alone["conditions"]), ["global", "window", "pointer"])
        self.assertEqual(alone["conditions"]["pointer"], result["conditions"]["pointer"])
        self.assertIn("the pointer", self.recall(*window, "--pointer", "adapter", "long.txt").stdout.decode())
        none = json.loads(self.recall(*window, "--adapter", "adapter", "--pointer", "none", "long.txt", "--json").stdout)
        self.assertEqual((none["pointer"], len(none["conditions"])), (None, 5))
        # ppl, over the same tokens
        each = [mixed for piece in pieces for mixed in losses(piece, *window, pointer=self.WINDOW)]
        measured = json.loads(
            run("ppl", "--model", "plain.gguf", *window, "--pointer", "adapter", "--file", "long.txt", "--context",
                str(self.CONTEXT), "--tokens", str(self.CONTEXT * len(pieces)), "--json").stdout)
        self.assertAlmostEqual(measured["nll"], statistics.fmean(each), places=4)
        self.assertEqual(measured["pointer"], "adapter")
        self.assertIn(b"pointer     adapter", run("ppl", "--model", "plain.gguf", *window, "--pointer", "adapter",
                                                  "--file", "long.txt").stdout)

    def test_pointer_refusals(self):
        write_pointer("p.json", delay=self.WINDOW)
        for words in (["ppl", "--file", "book.txt"], ["generate", "--prompt", "a"]):
            said = run(*words, "--model", "plain.gguf", "--pointer", "p.json", code=1).stderr
            self.assertIn(b"--pointer p.json: attention is global", said)
        self.assertIn(b"gone.json", self.recall("--window", "4", "--pointer", "gone.json", "book.txt", code=1).stderr)
        said = self.recall("--window", "5", "--pointer", "p.json", "book.txt").stderr
        self.assertIn(b"was fitted beside a window of 4, the window is 5", said)
        with open("p.json", "w", encoding="utf-8") as file:
            file.write('{"format": 1, "delay": 4, "links": 2, "theta": []}')
        said = self.recall("--window", "4", "--pointer", "p.json", "book.txt", code=1).stderr
        self.assertIn(b"p.json: theta: has 0 rows", said)

    def test_refusals(self):
        self.assertIn(b"add --window", self.recall("book.txt", code=1).stderr)
        self.assertIn(b"--context 40", self.recall("--window", "10", "book.txt", code=1).stderr)
        self.assertIn(b"FILE is missing", self.recall("--window", "4", code=2).stderr)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_model("plain.gguf")
        write_model("short.gguf", context=64)
        write_model("other.gguf", seed=2)
        write_model("ends.gguf", end_row=0.5)
        write_model("thinks.gguf", template=THINKING)
        write_model("silent.gguf", template=None)
        write_model("advised.gguf", sampling=[("temp", 2.0), ("top_k", 7.0)])
        write_model("escapes.gguf", said=b"ab \x1b\x07\r\x7f\n\t")
        probe = subprocess.run([PROGRAM, "generate", "--model", "plain.gguf", "--prompt", "a", "--tokens", "1"],
                               stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False)
        if b"this build has no" in probe.stderr:
            print("skipped: " + probe.stderr.decode(), file=sys.stderr)
            sys.exit(77)
        result = unittest.main(argv=sys.argv[:1] + sys.argv[2:], exit=False).result
        os.chdir("/")
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
