"""rosatune ppl and recall, and pointers, on a tiny model, from outside. The first argument is the program."""
import contextlib
import json
import math
import os
import pty
import random
import re
import signal
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
from tiny_model import (
    GREEDY, LIMIT, PROGRAM, SAMPLED, THINKING, WINDOW, Base, chat, expected, is_far, logits, losses, main, mix, out,
    put, raise_seen, receptive, run, write_adapter, write_pointer, write_table,
)


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


class Table(Base):
    """A pointer that knows what the text has had, everywhere: by the equation."""

    prompt = Pointer.prompt
    options = [*WINDOW, "--pointer", "t.json"]

    def setUp(self):
        super().setUp()
        write_table("t.json", delay=8)

    def test_generates(self):
        result = json.loads(out("--prompt", self.prompt, "--tokens", "12", "--json", *self.options))
        tokens, changed = list(self.prompt.encode()), 0
        for token in result["tokens"]:
            row = logits(tokens, *WINDOW)[-1]
            raised = raise_seen(row, tokens, 8)
            self.assertEqual(token, max(range(len(row)), key=raised.__getitem__))
            changed += token != max(range(len(row)), key=row.__getitem__)
            tokens.append(token)
        self.assertGreater(changed, 3, "the table must have changed something")

    def test_losses(self):
        put("text.txt", self.prompt)
        tokens = [*self.prompt.encode()]
        raised = [raise_seen(row, tokens[: t + 1], 8) for t, row in enumerate(logits(tokens, *WINDOW)[:-1])]
        wanted = math.fsum(-row[token] for row, token in zip(raised, tokens[1:])) / (len(tokens) - 1)
        ppl = ["ppl", "--model", "plain.gguf", "--file", "text.txt", "--json", *self.options]
        self.assertAlmostEqual(json.loads(run(*ppl).stdout)["nll"], wanted, delta=1e-5)

    def test_sessions_and_chat(self):
        words = ["--prompt", self.prompt, *self.options, *SAMPLED]
        text = out(*words, "--tokens", "15", "--save-session", "s")
        self.assertEqual(text + out("--load-session", "s", "--tokens", "25", *SAMPLED), out(*words, "--tokens", "40"))
        asked = ["Who sang of the river?", "The old one? Who sang of the river?", "And the bell?"]
        for model in "plain.gguf", "thinks.gguf":
            said = chat(*self.options, *GREEDY, lines=asked, model=model)
            self.assertEqual(said, expected(asked, *self.options, model=model))


class PointerFit(Base):
    """rosatune pointer fit."""

    WINDOW = ["--window", "4", "--sinks", "1"]

    def setUp(self):
        super().setUp()
        rng = random.Random(5)
        words = ["ferry", "bell", "river", "herring", "water", "the ", "old "]
        for name in "one.txt", "two.txt":
            put(name, " ".join(rng.choice(words) for _ in range(200)))

    def fit(self, *words, code=0):
        return run("pointer", "fit", "--model", "plain.gguf", *words, code=code)

    def test_fits(self):
        write_adapter("adapter")
        features = {"token", "greatest", "entropy", "alignment", "share", "places", "different", "success"}
        for more in ["--links", "8"], ["--links", "1", "--plain"], ["--no-seen"], ["--adapter", "adapter"]:
            words = [*self.WINDOW, "--context", "64", "--positions", "1100", "--out", "p.json", *more]
            said = self.fit(*words, "--json", "one.txt", "two.txt")
            result = json.loads(said.stdout)
            self.assertEqual((result["delay"], result["window"], result["context"]), (4, 4, 64))
            self.assertEqual(result["fitted"] + result["held_back"], result["pieces"] * 48)
            self.assertLess(result["after"]["ppl"], 0.7 * result["before"]["ppl"])
            with open("p.json", encoding="utf-8") as file:
                pointer = json.load(file)
            self.assertEqual((pointer["format"], pointer["delay"]), (1 if "--links" in more else 2, 4))
            if "--links" in more:
                self.assertEqual(pointer["links"], 1 if "--plain" in more else 8)
                self.assertEqual("confidence" in pointer, "--plain" not in more)
                self.assertEqual(len(pointer.get("agreement", [])), 0 if "--plain" in more else 8)
                self.assertEqual([len(row) for row in pointer["theta"]], [13] * pointer["links"])
            else:
                self.assertEqual((len(pointer["theta"]), set(pointer["slopes"])), (13, features))
            rows = 0 if "--links" in more or "--no-seen" in more else 4
            self.assertEqual([len(row) for row in pointer.get("seen", [])], [15] * rows)
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
            (b"--context 16: positions from four windows", [*self.WINDOW, "--context", "16", "one.txt"]),
            (b"no text has a whole piece of 102400", [*self.WINDOW, "--context", "100k", "one.txt"]),
            (b"there are 48 positions", [*self.WINDOW, "--context", "64", "short.txt"]),
            (b"--delay 3: attention still sees", [*self.WINDOW, "--delay", "3", "one.txt"]),
            (b"gone.txt", [*self.WINDOW, "gone.txt"]),
        ]:
            put("short.txt", "the old bell " * 7)
            said = self.fit("--out", "p.json", *words, code=1).stderr
            self.assertIn(pattern, said)
            self.assertTrue(said.startswith(b"rosatune pointer fit: "))
            self.assertFalse(os.path.exists("p.json"))
        self.assertIn(b"--links 17", self.fit("--out", "p", "--links", "17", "one.txt", code=2).stderr)
        for pattern, words in [
            (b"add --window", []),
            (b"add --window", ["--window", "0", "--adapter", "adapter"]),
            (b"--plain is for chains", [*self.WINDOW, "--plain"]),
            (b"--no-seen leaves out", [*self.WINDOW, "--no-seen", "--links", "2"]),
        ]:
            self.assertIn(pattern, self.fit("--out", "p.json", *words, "one.txt", code=2).stderr)
        self.assertIn(b"cannot make the folder one.txt: there is a file", self.fit("--out", "one.txt/none/p", *self.WINDOW, "one.txt",
                                                           code=1).stderr)
        self.fit("--out", "made/for/p.json", *self.WINDOW, "--context", "64", "--positions", "1100", "one.txt",
                 "two.txt")
        self.assertTrue(os.path.isfile("made/for/p.json"))


class Perplexity(Base):
    text = "The ferryman walks down to the water and rings the bell three times. Nobody hears it but the herring."

    def ppl(self, *words, code=0):
        return run("ppl", "--model", "plain.gguf", "--file", "book.txt", *words, code=code)

    def setUp(self):
        super().setUp()
        put("book.txt", self.text)

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

    def test_stretches_of_positions(self):
        """Of pieces of 32 tokens in three stretches, of which the first has no score before --skip."""
        words = ["--context", "32", "--skip", "11", "--positions", "3"]
        pieces = [self.text[i: i + 32] for i in range(0, len(self.text), 32)]
        wanted = [[], [], []]
        for piece in pieces:
            for t, loss in enumerate(losses(list(piece.encode()), *WINDOW), start=1):
                if t >= 11:
                    wanted[t * 3 // 32].append(loss)
        found = json.loads(self.ppl("--json", *words, *WINDOW).stdout)["positions"]
        self.assertEqual([(x["from"], x["to"], x["tokens"]) for x in found],
                         [(11, 22, len(wanted[1])), (22, 32, len(wanted[2]))])
        for x, some in zip(found, wanted[1:]):
            mean = math.fsum(some) / len(some)
            self.assertAlmostEqual(x["nll"], mean, delta=1e-6 * mean)
            self.assertAlmostEqual(x["perplexity"], math.exp(mean), delta=1e-5 * math.exp(mean))
        said = self.ppl(*words, *WINDOW).stdout.decode()
        self.assertRegex(said, rf"positions\n +11 to +21 +[0-9.]+  \({len(wanted[1])} tokens\)\n +22 to +31 ")
        self.assertNotIn("positions", json.loads(self.ppl("--json").stdout))
        self.assertIn(b"--positions 65: give", self.ppl("--positions", "65", code=2).stderr)

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
        put("book.txt", b"abc\xff")
        self.assertIn(b"book.txt: byte 3 (0xff) is not UTF-8", self.ppl(code=1).stderr)
        self.ppl("--lossy")
        open("book.txt", "wb").close()
        self.assertIn(b"rosatune ppl: book.txt: has no tokens", self.ppl(code=1).stderr)


class Recall(Base):
    """rosatune recall against the losses of single tokens and far tokens by their definition."""

    WINDOW, CONTEXT = 4, 40

    def setUp(self):
        super().setUp()
        write_adapter("adapter")
        put("book.txt", "the same words, the same words. " * 9)

    def recall(self, *words, code=0):
        return run("recall", "--model", "plain.gguf", "--context", str(self.CONTEXT), *words, code=code)

    def test_progress(self):
        """On a terminal: which reading it is of how many, and a bar of them all."""
        put("long.txt", "the cat and the hat and the bat. " * 20000)
        terminal, theirs = pty.openpty()
        words = [PROGRAM, "recall", "--model", "plain.gguf", "--window", "4", "--context", "40", "--adapter", "adapter"]
        process = subprocess.Popen([*words, "long.txt"], stderr=theirs, stdout=subprocess.DEVNULL,
                                   preexec_fn=receptive)
        os.close(theirs)
        shown = b""
        while not (bar := re.search(rb"(\w+), (\d) of 5 \[.*?(\d+)%.*? of (\d+) tokens", shown)):
            shown += os.read(terminal, 4096)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the end of a terminal
            while os.read(terminal, 4096):
                pass
        os.close(terminal)
        self.assertEqual(process.wait(timeout=LIMIT), 130)
        self.assertEqual(bar[1], [b"global", b"window", b"adapter", b"off", b"random"][int(bar[2]) - 1])
        self.assertLessEqual(int(bar[3]), 20 * int(bar[2]))
        self.assertEqual(int(bar[4]), 5 * 39 * (33 * 20000 // 40))

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
            put(name, text)
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
        put("long.txt", "abcabd. xyz abc " * 8)
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
        for option in ("--pointer", "--adapter"):
            self.assertIn(f"{option} gone: there is no such".encode(),
                          self.recall("--window", "4", option, "gone", "book.txt", code=1).stderr)
        said = self.recall("--window", "5", "--pointer", "p.json", "book.txt").stderr
        self.assertIn(b"was fitted beside a window of 4, the window is 5", said)
        put("p.json", '{"format": 1, "delay": 4, "links": 2, "theta": []}')
        said = self.recall("--window", "4", "--pointer", "p.json", "book.txt", code=1).stderr
        self.assertIn(b"p.json: theta: has 0 rows", said)

    def test_refusals(self):
        self.assertIn(b"add --window", self.recall("book.txt", code=2).stderr)
        self.assertIn(b"--context 40", self.recall("--window", "10", "book.txt", code=1).stderr)
        self.assertIn(b"FILE is missing", self.recall("--window", "4", code=2).stderr)


if __name__ == "__main__":
    main(dict(plain={}, thinks=dict(template=THINKING)))
