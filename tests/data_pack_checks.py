"""rosatune data pack and data check from outside: what lies in the shards, what is reported, what is left behind.

Shards are read here by a second reader, written from the description of the format. The tokenizer is made here, too:
single bytes, the merges of a few words and of two line ends, and the tokens of a chat. Cutting a text at a wrong place
changes its tokens with it, and what a text should give is asked of `rosatune tokenize`, which never cuts.
"""
import bz2
import functools
import gzip
import json
import lzma
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from tiny_model import letters

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "rosatune"
LIMIT = 120  # seconds until a run counts as hung

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = 0
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)


def write_tokenizer(folder, split=None, prefix_space=False, filler=0):
    """A tokenizer.json with GPT-2's way to cut, or another by a regular expression."""
    spelled = letters()
    vocabulary, merges = {}, []
    for token in SPECIAL + [spelled[b] for b in range(256)]:
        vocabulary[token] = len(vocabulary)

    def merge(left, right):
        a, b = ("".join(spelled[x] for x in part) for part in (left, right))
        merges.append(a + " " + b)
        vocabulary[a + b] = len(vocabulary)

    for left, right in [(b"\n", b"\n"), (b" ", b" "), (b".", b"\n"), (b"t", b"h"), (b"th", b"e"), (b" ", b"the"),
                        (b"\n", b"the"), (b" ", b"\n"), (b"u", b"s"), (b"\r", b"\n")]:
        merge(left, right)
    for _ in range(filler):
        vocabulary[f"[PAD{len(vocabulary)}]"] = len(vocabulary)
    level = {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": True, "use_regex": split is None}
    if split:
        step = {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
        level = {"type": "Sequence", "pretokenizers": [step, level]}
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, token in enumerate(SPECIAL)]
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w") as file:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                   "pre_tokenizer": level, "post_processor": None, "decoder": {"type": "ByteLevel"},
                   "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                             "vocab": vocabulary, "merges": merges}}, file)
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump({"chat_template": CHATML}, file)
    return vocabulary


def checksum(data):
    """XXH64 of whole words, written straight from its specification."""
    p1, p2, p3, p4, p5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                          0x27D4EB2F165667C5)
    bits = (1 << 64) - 1

    def rotate(x, by):
        return (x << by | x >> 64 - by) & bits

    def mix(lane, word):
        return rotate((lane + word * p2) & bits, 31) * p1 & bits

    words = [word for (word,) in struct.iter_unpack("<Q", data)]
    lanes, whole = [p1 + p2 & bits, p2, 0, -p1 & bits], len(words) // 4 * 4
    for i in range(whole):
        lanes[i % 4] = mix(lanes[i % 4], words[i])
    total = p5
    if whole:
        total = sum(rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18))) & bits
        for lane in lanes:
            total = (total ^ mix(0, lane)) * p1 + p4 & bits
    total = total + len(data) & bits
    for word in words[whole:]:
        total = rotate(total ^ mix(0, word), 27) * p1 + p4 & bits
    total = (total ^ total >> 33) * p2 & bits
    total = (total ^ total >> 29) * p3 & bits
    return total ^ total >> 32


class Shard:
    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        magic, version, width, tokens, documents, self.vocabulary, self.tokenizer, flags, total = struct.unpack(
            "<8sIIQQQQQQ", data[:64])
        assert (magic, version) == (b"rosatok\n", 2) and width in (2, 4) and flags in (0, 1), data[:64]
        if len(data) < 1 << 20:  # it takes long in Python
            assert checksum(data[64:] + data[:56] + bytes(8)) == total
        at = 64
        self.tokens = list(struct.unpack(f"<{tokens}{'H' if width == 2 else 'I'}", data[at:at + width * tokens]))
        at += (width * tokens + 7) // 8 * 8
        self.starts = struct.unpack(f"<{documents + 1}Q", data[at:at + 8 * (documents + 1)])
        at += 8 * (documents + 1)
        self.counts = None
        if flags & 1:
            self.counts = [data[at + i // 8] >> i % 8 & 1 for i in range(tokens)]
            at += ((tokens + 7) // 8 + 7) // 8 * 8
        assert at == len(data)

    def documents(self, what=None):
        what = self.tokens if what is None else what
        return [what[a:b] for a, b in zip(self.starts, self.starts[1:])]


@functools.lru_cache(maxsize=None)  # making it takes longer than packing it
def text_of(size, seed):
    """Words and lines in many ways, with places where a text must not be cut."""
    rng = random.Random(seed)
    words = ["the", "thus", "us", "a", "Thebes,", "I'll", "7", "1984.", "\u00e9t\u00e9", "\u4e2d\u6587\u3002", "x=1;",
             "\"Oh!\"", "end."]
    between = [" "] * 12 + ["\n"] * 4 + ["\n\n", "  ", " \n", "\n\n\n", "\r\n", "\n ", "\t"]
    parts = []
    while size > 0:
        parts.append(rng.choice(words) + rng.choice(between))
        size -= len(parts[-1])
    return "".join(parts)


def default_signals():
    """As a shell starts a program in the foreground, however the tests themselves were started."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, self.before)
        self.vocabulary = write_tokenizer("model")

    def put(self, path, content):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())

    def run_program(self, *words, code=0, stdin=b""):
        done = subprocess.run([PROGRAM, *words], input=stdin, capture_output=True, timeout=LIMIT)
        self.assertEqual(done.returncode, code, done.stderr.decode(errors="replace"))
        for line in done.stderr.decode().splitlines():
            self.assertTrue(line.startswith(f"rosatune {words[0]} {words[1]}: "), line)
        return done

    def pack(self, *words, code=0, stdin=b"", out="out", model="model"):
        done = self.run_program("data", "pack", "--model", model, "--out", out, *words, code=code, stdin=stdin)
        return done.stdout.decode(), done.stderr.decode()

    def shards(self, folder="out"):
        names = sorted(os.listdir(folder))
        self.assertEqual(names, [f"shard-{i:05}.tokens" for i in range(len(names))])
        return [Shard(os.path.join(folder, name)) for name in names]

    def documents(self):
        return [document for shard in self.shards() for document in shard.documents()]

    def tokens(self, text, model="model"):
        """What the text should give, from a command that never cuts it."""
        self.put("whole.txt", text)
        done = subprocess.run([PROGRAM, "tokenize", "--model", model, "--plain", "--json", "--file", "whole.txt"],
                              capture_output=True, timeout=LIMIT, check=True)
        os.remove("whole.txt")
        return json.loads(done.stdout)["ids"]


class Texts(Case):
    def test_files_folders_and_standard_input(self):
        self.put("b.txt", "the end")
        self.put("folder/z", "last")
        self.put("folder/a/inner.txt", "first\n\nthe")
        self.put("folder/.hidden", "no")
        said, errors = self.pack("b.txt", "folder", "-", stdin=b"from a pipe")
        self.assertEqual(errors, "")
        self.assertEqual(said, "4 documents, %d tokens, 0 bad lines; 1 shard: out\n" % len(self.shards()[0].tokens))
        wanted = ["the end", "first\n\nthe", "last", "from a pipe"]
        self.assertEqual(self.documents(), [self.tokens(text) + [END] for text in wanted])
        self.assertEqual(self.shards()[0].vocabulary, len(self.vocabulary))
        self.assertIsNone(self.shards()[0].counts)

    def test_ends(self):
        self.put("a.txt", "the")
        one = self.tokens("the")
        for words, wanted in [([], one + [END]), (["--no-end"], one), (["--end", "<|im_end|>"], one + [2])]:
            self.pack("a.txt", "--force", *words)
            self.assertEqual(self.documents(), [wanted])
        self.pack("a.txt", "--end", "<|nothing|>", code=1, out="other")
        self.pack("a.txt", "--end", "the", "--no-end", code=2, out="other")
        self.assertFalse(os.path.exists("other"))

    def test_special_tokens_are_text_unless_asked_for(self):
        self.put("a.txt", "a<|im_end|>b")
        self.pack("a.txt")
        self.assertEqual(self.documents(), [self.tokens("a<|im_end|>b") + [END]])
        self.assertNotIn(2, self.documents()[0])
        self.pack("a.txt", "--special", "--force")
        self.assertEqual(self.documents()[0][1], 2)

    def test_compression_is_seen_from_the_content(self):
        text = text_of(300000, 1).encode()
        half = len(text) // 2
        packed = {"gz": gzip.compress(text), "xz": lzma.compress(text),
                  "gz.gz": gzip.compress(text[:half]) + gzip.compress(text[half:]),
                  "xz.xz": lzma.compress(text[:half]) + lzma.compress(text[half:])}
        if shutil.which("zstd"):
            parts = [subprocess.run(["zstd", "-c"], input=part, capture_output=True, check=True).stdout
                     for part in (text, text[:half], text[half:])]
            packed.update({"zst": parts[0], "zst.zst": parts[1] + parts[2]})
        wanted = self.tokens(text.decode()) + [END]
        for name, content in packed.items():
            with self.subTest(name):
                self.put("any.txt", content)
                self.pack("any.txt", "--force")
                self.assertEqual(self.documents(), [wanted])
                self.pack("-", "--force", stdin=content)
                self.assertEqual(self.documents(), [wanted])
                shutil.rmtree("out")
                for cut in (len(content) - 3, len(content) // 2, 20):
                    self.put("any.txt", content[:cut])
                    _, errors = self.pack("any.txt", code=1)
                    self.assertRegex(errors, r"any\.txt: is (cut short|damaged)")
                    self.assertFalse(os.path.exists("out"))
                self.put("any.txt", content[:30] + bytes([content[30] ^ 255]) + content[31:half])
                self.pack("any.txt", code=1)
        self.put("any.txt", bz2.compress(text))  # not known, and no text
        self.assertIn("is binary", self.pack("any.txt", code=1)[1])

    def test_long_texts_are_cut_where_it_changes_nothing(self):
        """In every tokenizer's way; and the same with any number of threads."""
        ways = {"gpt2": {}, "qwen": {"split": QWEN}, "lines": {"split": "\\n[^\\n]*"}, "space": {"prefix_space": True}}
        for name, options in ways.items():
            with self.subTest(name):
                write_tokenizer(name, **options)
                text = text_of(900000, 2)
                self.put("long.txt", text)
                wanted = self.tokens(text, name) + [END]
                for threads in ("1", "3"):
                    self.pack("long.txt", "--force", "--threads", threads, model=name)
                    self.assertEqual(self.documents(), [wanted])

    def test_bad_lines_are_left_out_and_told(self):
        self.put("a.txt", b"good\nb\xffad\nthe end\n")
        said, errors = self.pack("a.txt", code=1)
        self.assertIn("a.txt:2: byte 1 (0xff) is not UTF-8", errors)
        self.assertIn("1 bad line was left out", errors)
        self.assertIn("1 document, ", said)
        self.assertIn(", 1 bad line;", said)
        self.assertEqual(self.documents(), [self.tokens("good\nthe end\n") + [END]])
        _, errors = self.pack("a.txt", "--allow-bad", "--force")
        self.assertIn("a.txt:2:", errors)
        said, errors = self.pack("a.txt", "--lossy", "--force")
        self.assertEqual(errors, "")
        self.assertEqual(self.documents(), [self.tokens("good\nb\ufffdad\nthe end\n") + [END]])

    def test_no_model(self):
        for content in ("It was the best of times", "", " \n", "[1]"):
            self.put("book.txt", content)
            _, errors = self.pack("book.txt", model="book.txt", code=1)
            self.assertRegex(errors, "book.txt: is (empty|not a GGUF file and not a tokenizer.json; name one, or a "
                                     "model's folder)")

    def test_binary_files_are_left_out(self):
        """As one bad line each, however many lines they seem to have."""
        self.put("a.txt", "the end")
        self.put("b.bin", b"GGUF\x03\0\0\0" + b"\xff\n" * 1000)
        self.put("c.txt.xz", lzma.compress("UTF-16".encode("utf-16")))
        said, errors = self.pack("b.bin", "a.txt", "c.txt.xz", code=1)
        for name in ("b.bin", "c.txt.xz"):
            self.assertIn(f"rosatune data pack: {name}: is binary (there are NUL bytes in it) and is left out; name "
                          "files of text, in UTF-8\n", errors)
        self.assertIn("1 document, ", said)
        self.assertIn(", 2 bad lines;", said)
        self.assertEqual(self.documents(), [self.tokens("the end") + [END]])
        _, errors = self.pack("b.bin", "--lossy", "--force", code=1)
        self.assertIn("there is nothing to pack", errors)

    def test_only_the_first_reports_are_shown(self):
        self.put("a.txt", b"\xff\n" * 25 + b"good")
        said, errors = self.pack("a.txt", code=1)
        self.assertEqual(errors.count("is not UTF-8"), 10)
        self.assertIn("and 15 bad lines more", errors)
        self.assertIn("25 bad lines", said)

    def test_empty_documents_are_counted(self):
        self.put("a.txt", "")
        self.put("b.txt", b"\xef\xbb\xbfthe")
        said, _ = self.pack("a.txt", "b.txt")
        self.assertIn("1 document, ", said)
        self.assertIn("1 empty document left out", said)
        self.assertEqual(self.documents(), [self.tokens("the") + [END]])
        self.assertIn("nothing to pack", self.pack("a.txt", code=1, out="other")[1])
        self.assertFalse(os.path.exists("other"))


class Shards(Case):
    def test_are_filled_and_go_on(self):
        for i in range(5):
            self.put(f"in/{i}.txt", "word " * 10)
        self.pack("in", "--shard-tokens", "32")
        shards = self.shards()
        one = self.tokens("word " * 10) + [END]
        self.assertTrue(all(len(shard.tokens) == 32 for shard in shards[:-1]))
        self.assertEqual(sum((shard.tokens for shard in shards), []), one * 5)
        self.assertGreater(len(shards), 5)

    def test_more_than_may_be_open(self):
        self.put("a.txt", "word " * 1000)
        few = ["sh", "-c", "ulimit -n 40; exec \"$@\"", "sh", PROGRAM, "data", "pack", "a.txt"]
        done = subprocess.run([*few, "--model", "model", "--out", "out", "--shard-tokens", "32"],
                              capture_output=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stderr)
        shards = self.shards()
        self.assertGreater(len(shards), 80)
        self.assertEqual(sum((shard.tokens for shard in shards), []), self.tokens("word " * 1000) + [END])

    def test_one_file(self):
        self.put("a.txt", "word " * 100)
        self.pack("a.txt", "--shard-tokens", "32", out="one.tokens")
        self.assertEqual(Shard("one.tokens").tokens, self.tokens("word " * 100) + [END])

    def test_a_file_that_is_there_is_not_overwritten(self):
        self.put("a.txt", "the")
        self.put("b.txt", "us")
        self.pack("a.txt", out="one.tokens")
        self.assertIn("one.tokens exists already; give another name, or replace it with --force",
                      self.pack("b.txt", out="one.tokens", code=1)[1])
        self.assertEqual(Shard("one.tokens").tokens, self.tokens("the") + [END])
        self.pack("b.txt", "--force", out="one.tokens")
        self.assertEqual(Shard("one.tokens").tokens, self.tokens("us") + [END])

    def test_missing_folders_are_made(self):
        self.put("a.txt", "the")
        self.put("empty.txt", "")
        for out, shard in [("a/b/out/", "a/b/out/shard-00000.tokens"), ("c//d/one.tokens", "c/d/one.tokens")]:
            self.assertIn("nothing to pack; empty documents: 1", self.pack("empty.txt", out=out, code=1)[1])
            self.assertFalse(os.path.exists(out[0]))  # and removed again if nothing comes of it
            self.pack("a.txt", out=out)
            self.assertEqual(Shard(shard).tokens, self.tokens("the") + [END])

    def test_a_folder_with_shards_is_not_mixed(self):
        self.put("a.txt", "word " * 100)
        self.put("b.txt", "the")
        self.pack("a.txt", "--shard-tokens", "32")
        self.assertGreater(len(self.shards()), 3)
        self.put("out/notes", "stays")
        self.assertIn("--force", self.pack("b.txt", code=1)[1])
        self.pack("b.txt", "--force")
        self.assertEqual(sorted(os.listdir("out")), ["notes", "shard-00000.tokens"])
        self.assertEqual(Shard("out/shard-00000.tokens").tokens, self.tokens("the") + [END])

    def test_the_same_every_time(self):
        self.put("a.txt", text_of(100000, 4))
        self.put("b.jsonl", "".join(json.dumps({"text": text_of(50, i)}) + "\n" for i in range(2000)))
        files = []
        for threads in ("1", "4"):
            self.pack("a.txt", "b.jsonl", "--threads", threads, out=threads + ".tokens")
            with open(threads + ".tokens", "rb") as file:
                files.append(file.read())
        self.assertEqual(files[0], files[1])

    def test_know_their_tokenizer(self):
        self.put("a.txt", "the")
        prints = {}
        for name, options in {"gpt2": {}, "qwen": {"split": QWEN}, "filled": {"filler": 9}}.items():
            write_tokenizer(name, **options)
            self.pack("a.txt", out=name + ".tokens", model=name)
            prints[name] = Shard(name + ".tokens").tokenizer
        self.assertNotEqual(prints["gpt2"], prints["qwen"])
        self.assertEqual(prints["gpt2"], prints["filled"])
        self.assertEqual(Shard("filled.tokens").vocabulary, Shard("gpt2.tokens").vocabulary + 9)

    def test_json(self):
        self.put("a.txt", "the")
        said, _ = self.pack("a.txt", "--json")
        self.assertEqual(json.loads(said), {"documents": 1, "tokens": 2, "bad_lines": 0, "empty_documents": 0,
                                            "shards": 1, "end": END})


class Lines(Case):
    def test_a_document_a_line(self):
        texts = ["the end", "a\nb \u00e9 \0 c", "x" * 400000, ""]
        self.put("a.jsonl", "\ufeff" + "\n\n".join(json.dumps({"id": 1, "text": text}) for text in texts))
        said, _ = self.pack("a.jsonl")
        self.assertIn("3 documents, ", said)
        self.assertIn("1 empty document left out", said)
        self.assertEqual(self.documents(), [self.tokens(text) + [END] for text in texts[:3]])

    def test_fields_and_formats(self):
        line = json.dumps({"body": "the"}) + "\n"
        wanted = [self.tokens("the") + [END]]
        for name in ("a.jsonl", "a.ndjson", "a.json", "a.jsonl.xz"):
            self.put(name, lzma.compress(line.encode()) if name.endswith(".xz") else line)
            self.pack(name, "--field", "body", "--force")
            self.assertEqual(self.documents(), wanted)
        self.pack("-", "--field", "body", "--format", "jsonl", "--force", stdin=line.encode())
        self.assertEqual(self.documents(), wanted)
        self.pack("a.jsonl", "--format", "text", "--force")
        self.assertEqual(self.documents(), [self.tokens(line) + [END]])

    def test_bad_lines(self):
        good = json.dumps({"text": "the"})
        lines = [good, "{", '{"text": 1}', '{"txet": "a"}', "[1]", '{"text": "\xff"}', good, '{"text": "\\ud800"}',
                 '"text"', good]
        self.put("a.jsonl", "\n".join(lines).encode("latin-1"))
        said, errors = self.pack("a.jsonl", code=1)
        self.assertIn("3 documents, 6 tokens, 7 bad lines", said)
        for number, reason in [(2, "line 1"), (3, "text: is a number"), (4, "text: is missing"),
                               (5, "not a JSON object"), (6, "not UTF-8"), (8, "line 1"), (9, "expected near")]:
            self.assertRegex(errors, rf"(?m)^rosatune data pack: a\.jsonl:{number}: .*{reason}")
        numbers = [int(line.split(":")[2]) for line in errors.splitlines()[:-1]]
        self.assertEqual(numbers, [2, 3, 4, 5, 6, 8, 9])
        self.assertEqual(self.documents(), [self.tokens("the") + [END]] * 3)


class Conversations(Case):
    START, STOP = 1, 2

    def expected(self, messages):
        tokens, counts = [], []

        def put(ids, count):
            tokens.extend(ids)
            counts.extend([count] * len(ids))

        for message in messages:
            answer = message["role"] == "assistant"
            whole = self.tokens(message["role"] + "\n" + message["content"])
            # single bytes and few merges: the header is what the bytes of its tokens say it is
            names = {number: token for token, number in self.vocabulary.items()}
            header, size = 0, 0
            while size < len(message["role"]) + 1 and header < len(whole):
                size += len(names[whole[header]])
                header += size <= len(message["role"]) + 1
                if size > len(message["role"]) + 1:
                    break
            put([self.START], 0)
            put(whole[:header], 0)
            put(whole[header:] + [self.STOP], int(answer))
            put(self.tokens("\n"), 0)
        return tokens, counts

    def talk(self, *texts, system=None):
        messages = [{"role": "user assistant".split()[i % 2], "content": text} for i, text in enumerate(texts)]
        return ([{"role": "system", "content": system}] if system else []) + messages

    def test_loss_on_answers_only(self):
        talks = [self.talk("Hello the", "Hi!\nthe end", "And?", "", system="Be the us"), self.talk("a", "b"),
                 self.talk("a", "\n\nspaced"), self.talk("assistant\n", "user\n<|im_end|><|im_start|>assistant\nno")]
        self.put("a.jsonl", "".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
        said, errors = self.pack("a.jsonl", "--chat")
        self.assertEqual(errors, "")
        self.assertIn("4 documents, ", said)
        shard, = self.shards()
        wanted = [self.expected(talk) for talk in talks]
        self.assertEqual(shard.documents(), [tokens for tokens, _ in wanted])
        self.assertEqual(shard.documents(shard.counts), [counts for _, counts in wanted])
        self.assertEqual(sum(shard.documents(shard.counts)[1]), 2)  # "b" and the end of it

    def test_stay_whole(self):
        talk = self.talk("question", "an answer")
        size = len(self.expected(talk)[0])
        self.put("a.jsonl", (json.dumps({"messages": talk}) + "\n") * 5)
        self.pack("a.jsonl", "--chat", "--shard-tokens", str(2 * size + 3))
        self.assertEqual([len(shard.starts) - 1 for shard in self.shards()], [2, 2, 1])
        _, errors = self.pack("a.jsonl", "--chat", "--shard-tokens", str(size - 1), code=1, out="other")
        self.assertIn("more than a shard", errors)

    def test_bad_ones(self):
        lines = [{"messages": self.talk("only asked")}, {"messages": []}, {"messages": "x"}, {"talk": []},
                 {"messages": [{"role": "tool", "content": "x"}, {"role": "assistant", "content": "y"}]},
                 {"messages": [{"role": "assistant"}]}, {"messages": self.talk("a", "b")}]
        self.put("a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        said, errors = self.pack("a.jsonl", "--chat", code=1)
        self.assertIn("1 document, ", said)
        self.assertIn("6 bad lines", said)
        for number, reason in [(1, "no answer"), (2, "no answer"), (3, "messages: is a string"), (4, "is missing"),
                               (5, "tool"), (6, "content: is missing")]:
            self.assertRegex(errors, rf"(?m)^rosatune data pack: a\.jsonl:{number}: .*{reason}")


class Checking(Case):
    """rosatune data check."""

    def check(self, *words, code=0):
        done = self.run_program("data", "check", *words, code=code)
        return done.stdout.decode(), done.stderr.decode()

    def alter(self, at, value, seal=True):
        """Another number in 64 bits at a place; with a checksum that fits, unless not."""
        with open("out/shard-00000.tokens", "rb") as file:
            data = bytearray(file.read())
        data[at:at + 8] = struct.pack("<Q", value)
        if seal:
            data[56:64] = struct.pack("<Q", checksum(bytes(data[64:] + data[:56] + bytes(8))))
        with open("altered.tokens", "wb") as file:
            file.write(data)

    def refused(self, words):
        output, errors = self.check("altered.tokens", code=1)
        self.assertEqual(output, "")
        self.assertTrue(errors.startswith("rosatune data check: altered.tokens: "), errors)
        self.assertIn(words, errors)

    def test_good_ones(self):
        self.put("a.jsonl", '{"text": "the"}\n{"text": "the the us"}\n{"text": "us"}\n')
        self.pack("a.jsonl")
        tokens, longest = len(Shard("out/shard-00000.tokens").tokens), len(self.tokens("the the us")) + 1
        output, _ = self.check("out/shard-00000.tokens")
        self.assertIn(f"3 documents, {tokens} tokens, the longest document {longest} (number 1); tokenizer ", output)
        output, _ = self.check("out", "--json", "--model", "model")
        known = json.loads(output)
        self.assertEqual((known["documents"], known["tokens"], known["longest"]), (3, tokens, longest))
        self.assertEqual((known["longest_document"], known["answers"]), (1, None))
        self.assertEqual(int(known["tokenizer"], 16), Shard("out/shard-00000.tokens").tokenizer)
        self.pack("a.jsonl", out="two.tokens")
        output, _ = self.check("out", "two.tokens")
        self.assertIn(f"2 files, 0 bad; 6 documents, {2 * tokens} tokens in good ones", output)

    def test_altered_texts(self):
        self.put("a.jsonl", '{"text": "the"}\n{"text": "the the us"}\n')
        self.pack("a.jsonl")
        shard = Shard("out/shard-00000.tokens")
        starts = 64 + (2 * len(shard.tokens) + 7) // 8 * 8
        self.alter(64, 60000)  # four tokens, the first of them none
        self.refused(f"token 0 is 60000, beyond the vocabulary of {shard.vocabulary} (byte 64 of the file)")
        self.alter(starts + 8, len(shard.tokens) + 1)
        self.refused(f"document 1 ends before it begins (byte {starts + 16} of the file)")
        self.alter(64, 5, seal=False)  # other tokens, that might be
        self.refused("is damaged: the checksum of its")
        self.alter(24, 3)
        self.refused("was it cut short?")
        with open("altered.tokens", "wb") as file:
            file.write(b"no shard")
        self.refused("is not a token shard")
        output, errors = self.check("altered.tokens", "out", code=1)  # the good one is looked at all the same
        self.assertIn("2 files, 1 bad; 2 documents", output)
        self.assertEqual(errors.count("\n"), 1)

    def test_altered_conversations(self):
        turns = [{"role": "user", "content": "us"}, {"role": "assistant", "content": "the"}]
        self.put("a.jsonl", (json.dumps({"messages": turns}) + "\n") * 2)
        self.pack("a.jsonl", "--chat")
        shard = Shard("out/shard-00000.tokens")
        marks = 64 + (2 * len(shard.tokens) + 7) // 8 * 8 + 3 * 8
        output, _ = self.check("out")
        self.assertIn(f"{len(shard.tokens)} tokens ({sum(shard.counts)} of answers), ", output)
        self.assertLess(len(shard.tokens), 64)
        bits = sum(bit << i for i, bit in enumerate(shard.counts))
        self.alter(marks, bits | 1 << len(shard.tokens))
        self.refused("marks an answer behind the last token")
        self.alter(marks, bits >> shard.starts[1] << shard.starts[1])
        self.refused(f"document 0 has no answer to learn from (byte {marks} of the file)")

    def test_what_cannot_be_checked(self):
        self.put("a.txt", "the")
        self.pack("a.txt")
        write_tokenizer("other", split=QWEN)
        self.assertIn("another tokenizer", self.check("out", "--model", "other", code=1)[1])
        self.assertIn("No such file", self.check("gone.tokens", code=1)[1])
        self.assertIn("no *.tokens in it", self.check("model", code=1)[1])
        words, errors = self.check("model", "out", code=1)
        self.assertIn("no *.tokens in it", errors)
        self.assertIn("2 files, 1 bad; 1 documents", words)
        self.check(code=2)


class Trouble(Case):
    def test_usage(self):
        self.put("a.txt", "the")
        for words, code, reason in [
            (["--model", "model", "--out", "out"], 2, "INPUT is missing"),
            (["--model", "model", "a.txt"], 2, "--out is missing"),
            (["--model", "model", "--out", "out", "none.txt"], 1, "cannot open none.txt"),
            (["--model", "none", "--out", "out", "a.txt"], 1, "none"),
            (["--model", "model", "--out", "a.txt", "a.txt"], 1, "a.txt"),
            (["--model", "model", "--out", "a.txt/out", "a.txt"], 1, "a.txt"),
            (["--model", "model", "--out", "a.txt/one.tokens", "a.txt"], 1, "a.txt"),
            (["--model", "model", "--out", "out", "--chat", "--special", "a.txt"], 2, "--chat"),
            (["--model", "model", "--out", "out", "--format", "xml", "a.txt"], 2, "--format xml"),
            (["--model", "model", "--out", "out", "--shard-tokens", "1", "a.txt"], 2, "--shard-tokens 1"),
        ]:
            with self.subTest(words):
                done = self.run_program("data", "pack", *words, code=code)
                self.assertIn(reason, done.stderr.decode())
                self.assertEqual(sorted(os.listdir(".")), ["a.txt", "model"])
        os.mkdir("empty")
        self.assertIn("no files", self.pack("empty", code=1)[1])
        os.mkdir("round")
        os.symlink("../round", "round/again")
        self.assertIn("link to itself", self.pack("round", code=1)[1])

    def test_a_full_disk_leaves_what_was_there(self):
        """The limit on a file's size is a full disk as far as writing goes."""
        self.put("a.txt", "the")
        self.put("long.txt", text_of(400000, 5))
        self.pack("a.txt", out="one.tokens")
        self.pack("a.txt")
        for out in ("one.tokens", "out", "new"):
            done = subprocess.run(["sh", "-c", 'ulimit -f 64; trap "" XFSZ; exec "$@"', "sh", PROGRAM, "data", "pack",
                                   "--model", "model", "--out", out, "--force", "long.txt"],
                                  capture_output=True, timeout=LIMIT)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(b"error while writing", done.stderr)
        self.assertEqual(Shard("one.tokens").tokens, self.tokens("the") + [END])
        self.assertEqual(self.documents(), [self.tokens("the") + [END]])
        self.assertEqual(sorted(os.listdir(".")), ["a.txt", "long.txt", "model", "one.tokens", "out"])

    @staticmethod
    def writing(process, folder):
        """Whether it has begun a file there; one without a name shows among what the process has open."""
        if not os.path.isdir(folder):
            return False
        links = f"/proc/{process.pid}/fd"
        opened = [os.path.join(links, name) for name in os.listdir(links)] if os.path.isdir(links) else []
        inside = os.path.realpath(folder) + "/"
        return bool(os.listdir(folder)) or any(os.path.islink(x) and os.readlink(x).startswith(inside) for x in opened)

    @staticmethod
    def nameless_files():
        """Whether files can do without a name here."""
        try:
            os.close(os.open(".", os.O_WRONLY | os.O_TMPFILE))
        except (AttributeError, OSError):
            return False
        return True

    def interrupted(self, number, code):
        process = subprocess.Popen([PROGRAM, "data", "pack", "--model", "model", "--out", "out", "--shard-tokens",
                                    "10000", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE,
                                   preexec_fn=default_signals)
        try:
            process.stdin.write(text_of(6000000, 6).encode())
            process.stdin.flush()
            until = time.monotonic() + LIMIT
            while not self.writing(process, "out"):
                self.assertLess(time.monotonic(), until)
                time.sleep(0.01)
            process.send_signal(number)
            process.wait(timeout=LIMIT)  # although more may come
            errors = process.stderr.read()
        finally:
            process.kill()
            process.stdin.close()
            process.stdout.close()
            process.stderr.close()
        self.assertEqual(process.returncode, code, errors)
        return errors

    def test_signals_leave_nothing(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            errors = self.interrupted(number, code)
            self.assertEqual(errors, b"rosatune data pack: interrupted; nothing was written\n")
            self.assertEqual(os.listdir("."), ["model"])

    def test_nohup(self):
        """A signal that was ignored from the beginning stays ignored."""
        process = subprocess.Popen([PROGRAM, "data", "pack", "--model", "model", "--out", "out", "-"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        process.stdin.write(b"the ")
        process.stdin.flush()
        until = time.monotonic() + LIMIT
        while not os.path.isdir("out"):  # it has begun
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)
        process.send_signal(signal.SIGHUP)
        _, errors = process.communicate(b"end", timeout=LIMIT)
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(self.documents(), [self.tokens("the end") + [END]])

    def test_being_killed_leaves_no_shard(self):
        self.interrupted(signal.SIGKILL, -9)
        left = os.listdir("out")
        self.assertEqual([name for name in left if not name.startswith(".") or self.nameless_files()], [])
        self.put("a.txt", "the")
        self.pack("a.txt")
        self.assertTrue(os.path.exists("out/shard-00000.tokens"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
