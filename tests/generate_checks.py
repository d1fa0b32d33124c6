"""rosatune generate and chat on a tiny model, from outside. The first argument is the program."""
import gzip
import json
import lzma
import os
import pty
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from tiny_model import (
    CUT, GREEDY, LIMIT, OPEN, PROGRAM, SAMPLED, SPECIAL, THINKING, WINDOW, Base, chat, expected, generate, main, message,
    out, put, receptive, run, write_adapter,
)


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
        put("book.txt", "Ferry männer")
        self.assertEqual(out("--file", "book.txt", "--prompt", " rufen.", "--tokens", "20"), whole)
        given = "Ferry männer rufen.".encode()
        self.assertEqual(out("--file", "-", "--tokens", "20", given=given), whole)
        self.assertNotEqual(out("--file", "book.txt", "--tokens", "20"), whole)

    def test_compressed_files(self):
        """Recognised by their content, whatever their names; a build without a library says which to install."""
        book = "Ferry männer rufen. ".encode() * 20
        put("book.txt", book)
        packed = {"zlib": gzip.compress(book), "lzma": lzma.compress(book)}
        if shutil.which("zstd"):
            packed["zstd"] = subprocess.run(["zstd", "-c", "book.txt"], capture_output=True, check=True).stdout
        features = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
        for name, content in packed.items():
            put("packed", content)
            if f"{name}: yes" not in features:
                self.refused("install", "--file", "packed")
                continue
            self.assertEqual(out("--file", "packed", "--tokens", "9"), out("--file", "book.txt", "--tokens", "9"))
            self.assertEqual(out("--file", "-", "--tokens", "9", given=content),
                             out("--file", "book.txt", "--tokens", "9"))
            put("packed", content[:-20])
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
        self.assertEqual(result["retrieval_bytes"], 0)
        # `info` says beforehand what attention takes; the last token is not read.
        for way, tokens, options in [("global", 30, []), ("global", 300, []), ("window", 300, WINDOW)]:
            words[-1] = str(tokens)
            taken = json.loads(out(*words, *options, "--json"))["attention_bytes"]
            described = json.loads(run("info", "plain.gguf", "--json", "--contexts", str(9 + tokens),
                                       *(WINDOW if way == "window" else [])).stdout)
            self.assertEqual(described["memory"][0][way]["cache"], taken)

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
        put("book.txt", "x" * 65)
        words = ["ppl", "--model", "short.gguf", "--file", "book.txt"]
        self.assertRegex(run(*words).stderr.decode(), warning(65))
        self.assertEqual(run(*words, "--context", "64").stderr, b"")
        self.assertEqual(run(*words, *WINDOW).stderr, b"")

    def test_bytes_that_are_no_text(self):
        put("bad.txt", b"good \xc3\xa4 bad \xff\xc3(")
        self.refused(r"bad\.txt: byte 12 \(0xff\) is not UTF-8.*--lossy", "--file", "bad.txt")
        self.refused(r"standard input: byte 1 ", "--file", "-", given=b"a\x80")
        self.refused(r"--prompt: byte 2 ", "--prompt", b"ab\xe2\x82")
        put("repaired.txt", "good ä bad \ufffd\ufffd(")
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
                put("bad", bad)
                self.refused("bad", "--load-session", "bad", "--tokens", "1", *WINDOW)
        put("bad", whole + bytes(8))
        self.refused("bad", "--load-session", "bad", "--tokens", "1", *WINDOW)

    def test_a_failed_save_leaves_the_old_session(self):
        put("s", "old")
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
        put("book.txt", document)
        asked = [document + "\n\n" + self.asked[0], *self.asked[1:]]
        self.assertEqual(chat(*WINDOW, "--file", "book.txt", lines=self.asked), expected(asked, *WINDOW))
        put("zero.txt", b"ab\0c")
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
        self.assertRegex(self.wait("> "), r"\[stopped after [0-9]+ tokens\]\r\n\[read ")
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
        put("long.txt", "A story of a ferryman. " * 400000)  # far from read when the bar is first drawn
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

    def test_a_document_that_is_not_read_to_its_end(self):
        """Ctrl-C says how far it was read, and the next message reads the rest."""
        put("book.txt", "the old ferryman sang of the old river. " * 20000)
        self.start("--file", "book.txt", "--chunk", "1", "--tokens", "12")
        self.wait("% ")  # of the bar
        self.type("\x03")
        self.wait("[stopped at ")
        said = self.wait("> ")
        at, whole = map(int, re.match(r"(\d+) of (\d+) tokens; the rest is read with your next message\]\r\n",
                                      said).groups())
        self.assertLess(at, whole)
        self.assertGreater(whole, 800000)
        self.type("/quit\n")
        self.finish(0)

    def test_one_token_is_one(self):
        self.start("generate", "--model", "plain.gguf", "--prompt", "a", "--tokens", "1")
        self.finish(0)
        self.assertIn("read 1 token (", self.screen)

    def test_a_history_is_bounded(self):
        if "libedit: yes" not in run("--version").stdout.decode():
            self.skipTest("this build has no libedit")
        os.makedirs("state/rosatune")
        put("state/rosatune/chat_history", "".join(f"line {i}\n" for i in range(2001)))
        self.start(terminal="xterm")
        self.wait("> ")
        self.type("\x04")
        self.finish(0)
        with open("state/rosatune/chat_history", encoding="utf-8") as file:
            self.assertEqual(file.read(), "".join(f"line {i}\n" for i in range(1001, 2001)))


if __name__ == "__main__":
    main(dict(
        plain={},
        short=dict(context=64),
        other=dict(seed=2),
        ends=dict(end_row=0.5),
        thinks=dict(template=THINKING),
        silent=dict(template=None),
        advised=dict(sampling=[("temp", 2.0), ("top_k", 7.0)]),
        escapes=dict(said=b"ab \x1b\x07\r\x7f\n\t"),
    ))
