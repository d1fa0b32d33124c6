"""Texts that rosatune serve keeps on disk, from outside. The first argument is the program."""
import contextlib
import fcntl
import http.client
import json
import os
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
from tiny_model import LIMIT, PROGRAM, WINDOW, Base, main, out, put, write_adapter, write_pointer
from tiny_server import COMPLETIONS, GREEDY, STORY, Server, cached, clients, text

LONG = STORY * 150
NAME = re.compile(r"kept-[0-9a-f]{16}\.session$")
FIRST = "kept/kept-0000000000000001.session"


def files(folder="kept"):
    """The sessions in a folder, the one changed last at the end."""
    names = sorted(os.listdir(folder), key=lambda name: os.stat(f"{folder}/{name}").st_mtime_ns)
    return [f"{folder}/{name}" for name in names if NAME.match(name)]


def damage(path, place):
    """Changes one bit, so many bytes from the beginning or, if negative, from the end."""
    with open(path, "r+b") as file:
        file.seek(place, os.SEEK_SET if place > 0 else os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


@contextlib.contextmanager
def starved(server):
    """A function that posts to a server which can open no files meanwhile."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)

    def post(path, **fields):
        connection.request("POST", path, json.dumps(fields), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    with contextlib.closing(connection):
        connection.connect()
        server.metric("sessions")  # the server has the connection by now
        limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (4, limits[1]))
        yield post
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)


class Sessions(Base):
    def setUp(self):
        shutil.rmtree("kept", ignore_errors=True)

    def serve(self, *words, **options):
        return Server("--sessions", "kept", *words, **options)

    def ask(self, server, prompt, most=12):
        return server.complete(prompt, max_tokens=most, **GREEDY)

    def saved(self, server, count=1):
        """Waits until there are so many sessions on disk, and nothing is left to write."""
        server.until("session_files", count)

    def test_a_restarted_server_goes_on(self):
        write_adapter("adapter")
        write_pointer("pointer.json", 8)
        for options in [], WINDOW, ["--adapter", "adapter", "--pointer", "pointer.json"]:
            with self.subTest(options=options):
                self.setUp()
                with self.serve(*options) as server:
                    first = self.ask(server, LONG)
                    self.assertEqual(server.end(signal.SIGTERM), (0, ""))
                prompt = LONG + text(first) + " And then?"
                wanted = out("--prompt", prompt, "--tokens", "12", *options)
                with self.serve(*options) as server:
                    self.assertRegex(server.line, r"in kept: \d+\.\d of 8192\.0 MiB, [12] texts")
                    second = self.ask(server, prompt)
                    self.assertEqual(text(second), wanted)
                    self.assertEqual(cached(second), first["usage"]["total_tokens"] - 1)
                    # From memory now, and with the older text replaced by the longer one.
                    self.assertEqual(cached(self.ask(server, prompt)), second["usage"]["prompt_tokens"] - 1)
                with self.serve(*options) as server:
                    third = self.ask(server, prompt)
                    self.assertEqual((text(third), cached(third)), (wanted, second["usage"]["prompt_tokens"] - 1))

    def test_others_cannot_read_them(self):
        with self.serve():
            self.assertEqual(os.stat("kept").st_mode & 0o777, 0o700)

    def test_the_end_waits_for_streams_and_saves(self):
        with self.serve() as server:
            with server.streaming(prompt=STORY, max_tokens=400, **GREEDY) as response:
                server.process.send_signal(signal.SIGTERM)
                body = "data:" + response.read().decode()
            self.assertEqual(server.process.wait(LIMIT), 0)
            self.assertTrue(body.endswith("data: [DONE]\n\n"), body[-200:])
        with self.serve() as server:
            answer = out("--prompt", STORY, "--tokens", "400")
            second = self.ask(server, STORY + answer + "!")
            self.assertEqual(cached(second), len(STORY) + 399)

    def test_what_a_client_left_behind_is_kept(self):
        with self.serve("--parallel", "1") as server:
            with server.streaming(prompt=LONG, max_tokens=10**7, **GREEDY):
                pass
            server.until("requests_cancelled_total", 1)
        with self.serve() as server:
            self.assertEqual(cached(self.ask(server, LONG)), len(LONG) - 1)

    def test_generate_reads_them(self):
        with self.serve(*WINDOW) as server:
            self.ask(server, STORY, 40)
        whole = out("--prompt", STORY, "--tokens", "60", *WINDOW)
        paths = files()
        self.assertEqual(len(paths), 2)  # where the answer begins, and where it ends
        longest = max(paths, key=os.path.getsize)
        result = subprocess.run([PROGRAM, "generate", "--model", "plain.gguf", "--load-session", longest, "--tokens", "20"],
                                capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL, check=False)
        self.assertEqual((result.returncode, result.stdout.rstrip("\n")), (0, whole[40:]), result.stderr)

    def test_kill(self):
        """Killed at any time, with nothing lost that was written before and no half of a file left."""
        wanted, known, prompt = [], 0, LONG
        with Server() as server:
            for _ in range(12):
                wanted.append(text(self.ask(server, prompt)))
                prompt += wanted[-1] + " And then?"
        prompt = LONG
        for i, answer in enumerate(wanted):
            with self.serve() as server:
                self.assertEqual(len(files()) + 1, len(os.listdir("kept")))  # and the lock; no leftovers
                given = self.ask(server, prompt)
                self.assertEqual(text(given), answer)
                self.assertGreaterEqual(cached(given), known)
                if i % 3 == 2:
                    server.until("session_files", 1)
                    time.sleep(0.2)
                    known = given["usage"]["total_tokens"] - 1
                elif i % 3 == 1:
                    time.sleep(0.0002 * i)
                server.process.kill()
                self.assertEqual(server.process.communicate(timeout=LIMIT)[1], "")
                self.assertLessEqual(len(files()), 1)
            prompt += answer + " And then?"

    def test_disk_is_bounded(self):
        with self.serve("--keep", "1") as server:
            self.ask(server, "a" + STORY)
            self.saved(server)
            size = server.metric("session_file_bytes")
        limit = int(3.5 * size)
        with self.serve("--keep", "1", "--disk", str(limit)) as server:
            for letter in "bcd":
                self.ask(server, letter + STORY)
            self.assertEqual(cached(self.ask(server, "b" + STORY)), len(STORY))  # is the newest now
            self.ask(server, "e" + STORY)
            self.assertEqual(server.end(signal.SIGTERM), (0, ""))
        self.assertEqual(len(files()), 3)
        self.assertLessEqual(sum(map(os.path.getsize, files())), limit)
        with self.serve("--keep", "1", "--disk", str(limit)) as server:
            for letter, kept in ("d", True), ("b", True), ("e", True), ("a", False), ("c", False):
                self.assertEqual(cached(self.ask(server, letter + STORY)), len(STORY) if kept else 0, letter)
        with self.serve("--disk", "100") as server:
            self.assertEqual(server.metric("session_files"), 0)
            self.ask(server, STORY)
            self.assertEqual(cached(self.ask(server, STORY)), len(STORY) - 1)
        self.assertEqual(files(), [])

    def test_what_leaves_memory_stays_on_disk(self):
        with self.serve("--keep", "2") as server:
            for letter in "abcd":
                self.ask(server, letter + STORY)
            self.assertEqual(server.metric("sessions"), 2)
            for letter in "abcd":
                answer = self.ask(server, letter + STORY)
                self.assertEqual(cached(answer), len(STORY))
                self.assertEqual(text(answer), out("--prompt", letter + STORY, "--tokens", "12"))

    def test_damaged_files(self):
        with self.serve() as server:
            for letter in "abc":
                self.ask(server, letter + STORY)
        paths = files()
        for path, place in zip(paths, (100, -20)):  # in the list of tokens, and in the state
            damage(path, place)
        with self.serve() as server:
            kept = []  # files that are written at the end have no order
            for letter in "abc":
                answer = self.ask(server, letter + STORY)
                kept.append(cached(answer))
                self.assertEqual(text(answer), out("--prompt", letter + STORY, "--tokens", "12"))
            self.assertEqual(sorted(kept), [0, 0, len(STORY)])
            said = server.end(signal.SIGTERM)[1].splitlines()
        self.assertEqual(len(said), 2, said)
        self.assertRegex(said[0], f"note: {paths[0]} was cut short or altered")
        self.assertRegex(said[1], f"note: {paths[1]}: .*damaged")
        self.assertEqual(len(files()), 5)  # the damaged ones are still there, and those two texts anew
        self.assertEqual(set(paths) - set(files()), set())

    def test_a_file_that_has_read_more_than_it_has(self):
        with self.serve() as server:
            self.ask(server, STORY)
        with open(FIRST, "r+b") as file:
            place = file.read().index(b"ROSASEQU") + 7 * 8  # the header of the sequence: magic, six numbers, steps
            file.seek(place)
            self.assertEqual(struct.unpack("<Q", file.read(8))[0], len(STORY) + 11)
            file.seek(place)
            file.write(struct.pack("<Q", 10**6))
        with self.serve() as server:
            answer = self.ask(server, STORY)
            self.assertEqual((text(answer), cached(answer)), (out("--prompt", STORY, "--tokens", "12"), 0))
            self.assertRegex(server.end(signal.SIGTERM)[1], f"note: {FIRST} was cut short or altered")

    def test_names_with_the_first_and_the_last_number(self):
        with self.serve() as server:
            first = self.ask(server, STORY)
        for number in "0" * 16, "f" * 16:
            os.rename(files()[0], f"kept/kept-{number}.session")
            with self.serve() as server:
                self.assertEqual(server.metric("session_files"), 0)
                second = self.ask(server, STORY)
                self.assertEqual((text(second), cached(second)), (text(first), 0))
                self.assertEqual(server.end(signal.SIGTERM), (0, ""))
            self.assertEqual(len(files()), 2)
            os.unlink(f"kept/kept-{number}.session")

    def test_a_file_that_cannot_be_opened_now(self):
        with self.serve() as server:
            first = self.ask(server, "a" + STORY, 40)
        with self.serve() as server:
            with starved(server) as post:
                _, answer = post(COMPLETIONS, prompt="a" + STORY + "xy", max_tokens=12, **GREEDY)
            self.assertEqual((text(answer), cached(answer)),
                             (out("--prompt", "a" + STORY + "xy", "--tokens", "12"), 0))
            # It is a good file, and of use now.
            second = self.ask(server, "a" + STORY + text(first) + "!")
            self.assertEqual(cached(second), first["usage"]["total_tokens"] - 1)
            self.assertRegex(server.end(signal.SIGTERM)[1], f"note: {FIRST}: Too many open files")

    def test_one_that_does_not_fit_alone(self):
        with self.serve() as server:
            for letter in "ab":
                self.ask(server, letter + STORY)
            self.saved(server, 2)
            size = server.metric("session_file_bytes")
            limit = int(1.5 * size)
            self.ask(server, "c" + STORY * 10)
        self.assertEqual(len(files()), 3)
        os.utime(max(files(), key=os.path.getsize))
        for _ in range(2):  # found at the start, then written
            with self.serve("--disk", str(limit)) as server:
                self.saved(server, 2)
                self.ask(server, "c" + STORY * 10)
                self.assertEqual(server.end(signal.SIGTERM), (0, ""))
            self.assertEqual(len(files()), 2)
        with self.serve("--disk", str(limit)) as server:
            for letter in "ab":
                self.assertEqual(cached(self.ask(server, letter + STORY)), len(STORY))

    def test_memory_keeps_no_more_than_it_may(self):
        with self.serve("--keep", "2") as server:
            for letter in "abcdabcd":
                self.ask(server, letter + STORY)
            server.until("sessions", 2)

    def test_every_file_is_known(self):
        """A text that is not kept, since another one has it, leaves the files of others alone."""
        start, x, y = "a" + STORY, "xx" + STORY, "yy" + STORY
        with self.serve() as server:
            start += text(self.ask(server, start))
        with self.serve() as server:
            with server.streaming(prompt="z" + STORY, max_tokens=10**7, **GREEDY):  # nothing is written meanwhile
                # No file is made of this one. It stands before the others, until a longer text comes after them.
                server.complete("b" + STORY, max_tokens=0, echo=True, logprobs=1, **GREEDY)
                longer = start + x + text(self.ask(server, start + x))
                self.ask(server, start + y, 40)
                self.ask(server, "b" + STORY + x)
                with server.streaming(prompt=longer + "!", max_tokens=10**7, **GREEDY):
                    # What is left of `longer` is the beginning that its file has; this text is in another, too.
                    self.ask(server, start + y, 20)
            server.until("requests_cancelled_total", 2)
            self.saved(server, 4)
            self.assertEqual(len(files()), 4)

    def test_what_the_end_cuts_short_is_kept(self):
        if not os.environ.get("ROSATUNE_TEST_LONG"):
            self.skipTest("answers have thirty seconds to end")
        with self.serve() as server:
            with server.streaming(prompt=LONG, max_tokens=10**7, **GREEDY) as response:
                server.process.send_signal(signal.SIGTERM)
                with contextlib.suppress(http.client.IncompleteRead):
                    response.read()
            self.assertEqual(server.process.wait(LIMIT), 0)
        with self.serve() as server:
            self.assertEqual(cached(self.ask(server, LONG)), len(LONG) - 1)

    def test_many_who_continue_each_other(self):
        """Texts with the same beginning, in little memory: they are loaded, copied, taken over and dropped again and again."""
        prompts = [STORY * n + letter for n in (1, 2, 5) for letter in "abc"]
        for options in [], WINDOW:
            self.setUp()
            wanted = [out("--prompt", prompt, "--tokens", "12", *options) for prompt in prompts]

            def client(number):
                for i in range(40):
                    which = [(number * 7 + i * (j + 1)) % len(prompts) for j in range(1 + i % 3)]
                    answer = self.ask(server, [prompts[k] for k in which])
                    assert [text(answer, j) for j in range(len(which))] == [wanted[k] for k in which]

            with self.subTest(options=options), self.serve("--keep", "1", "--parallel", "3", *options) as server:
                clients(6, client)
                self.assertEqual(server.end(signal.SIGTERM), (0, ""))

    def test_sessions_of_another_model_are_not_used(self):
        write_adapter("one")
        write_adapter("two", seed=2)
        settings = [([], "plain"), ([], "other"), (WINDOW, "plain"), (["--adapter", "one"], "plain"),
                    (["--adapter", "two"], "plain")]
        for options, model in settings:
            with self.serve(*options, model=f"{model}.gguf") as server:
                answer = self.ask(server, STORY)
                self.assertEqual(cached(answer), 0)
                self.assertEqual(text(answer), out("--prompt", STORY, "--tokens", "12", *options,
                                                   model=f"{model}.gguf"))
        for options, model in settings:
            with self.serve(*options, model=f"{model}.gguf") as server:
                self.assertEqual(cached(self.ask(server, STORY)), len(STORY) - 1)
                said = server.end(signal.SIGTERM)[1]
                self.assertRegex(said, "the sequence was read")

    def test_sessions_of_a_changed_model_are_not_used(self):
        """One bit of one weight, far from the beginning of its tensor, makes it another model or adapter."""
        write_adapter("changing")
        shutil.copy("plain.gguf", "changing.gguf")
        options = ["--adapter", "changing"]
        for path, what in ("changing.gguf", "model"), ("changing/adapter_model.safetensors", "with another adapter"):
            self.setUp()
            with self.serve(*options, model="changing.gguf") as server:
                self.ask(server, STORY)
            with open(path, "r+b") as file:
                file.seek(-8, os.SEEK_END)  # the lowest byte of a number
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 1]))
            with self.serve(*options, model="changing.gguf") as server:
                self.assertEqual(cached(self.ask(server, STORY)), 0)
                self.assertRegex(server.end(signal.SIGTERM)[1], f"the sequence was read .*{what}")

    def test_one_server_per_folder(self):
        with self.serve():
            result = subprocess.run([PROGRAM, "serve", "--model", "plain.gguf", "--port", "0", "--sessions", "kept"],
                                    check=False, capture_output=True, text=True, timeout=LIMIT,
                                    stdin=subprocess.DEVNULL)
            self.assertEqual(result.returncode, 1)
            self.assertIn("in use by another server", result.stderr)

    def test_a_folder_that_cannot_be_written(self):
        with open("kept", "w", encoding="utf-8"):
            pass
        result = subprocess.run([PROGRAM, "serve", "--model", "plain.gguf", "--port", "0", "--sessions", "kept"],
                                check=False, capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL)
        os.unlink("kept")
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot make the folder kept", result.stderr)


class SlowDisk(Base):
    """A pipe that nobody reads, where a file is to be written, is a disk that takes as long as a test likes."""

    def setUp(self):
        shutil.rmtree("kept", ignore_errors=True)

    def serve(self, *words):
        """A server whose first kept text will be written to a pipe."""
        server = Server("--sessions", "kept", *words)
        os.mkfifo(FIRST)
        return server

    def opened(self):
        """Waits until the server has the pipe open, and returns what reads from it."""
        return open(FIRST, "rb")  # returns when there is a writer

    def test_nobody_waits_for_a_file_that_is_being_written(self):
        wanted = [out("--prompt", letter + STORY, "--tokens", "12") for letter in "ab"]
        with self.serve() as server:
            first = server.complete("a" + LONG, max_tokens=12, **GREEDY)
            with self.opened() as pipe:
                self.assertEqual(pipe.read(8), b"ROSASESS")  # and then nothing for a while
                for letter, answer in zip("ab", wanted):
                    self.assertEqual(text(server.complete(letter + STORY, max_tokens=12, **GREEDY)), answer)
                self.assertEqual(server.metric("session_files"), 0)
                # Another try is a copy of what is being written, and as good.
                again = server.complete("a" + LONG, max_tokens=12, **GREEDY)
                self.assertEqual((text(again), cached(again)), (text(first), len(LONG)))
                # Going on takes the text away from the disk, which begins again later.
                prompt = "a" + LONG + text(first) + " And then?"
                second = server.complete(prompt, max_tokens=12, **GREEDY)
                self.assertEqual(cached(second), first["usage"]["total_tokens"] - 1)
                self.assertEqual(text(second), out("--prompt", prompt, "--tokens", "12"))
            os.unlink(FIRST)
            self.assertEqual(server.end(signal.SIGTERM)[0], 0)
        with Server("--sessions", "kept") as server:
            third = server.complete(prompt, max_tokens=12, **GREEDY)
            self.assertEqual((text(third), cached(third)), (text(second), len(prompt) - 1))

    def test_what_leaves_memory_can_be_used_until_it_is_written(self):
        with self.serve("--keep", "1") as server:
            first = server.complete("a" + LONG, max_tokens=12, **GREEDY)
            with self.opened() as pipe:
                pipe.read(8)
                server.complete("b" + STORY, max_tokens=12, **GREEDY)
                self.assertEqual(server.metric("sessions"), 1)
                prompt = "a" + LONG + text(first) + "!"
                second = server.complete(prompt, max_tokens=12, **GREEDY)
                self.assertEqual(cached(second), first["usage"]["total_tokens"] - 1)
                os.unlink(FIRST)

    @contextlib.contextmanager
    def saving(self, server, slot=0):
        """The disk does nothing else: a slot is being saved, until the end."""
        os.mkfifo("kept/slow")
        with open(os.open("kept/slow", os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)  # less than a file with a window takes
            thread = threading.Thread(target=server.post, args=(f"/slots/{slot}?action=save",),
                                      kwargs={"filename": "slow"})
            thread.start()
            select.select([pipe], [], [], LIMIT)
            os.set_blocking(pipe.fileno(), True)
            yield
            pipe.read()
        thread.join(LIMIT)

    def test_a_slot_that_is_used_while_its_saving_waits(self):
        with self.serve() as server:
            os.unlink(FIRST)
            server.complete(LONG, max_tokens=12, **GREEDY)
            replies = []
            second = threading.Thread(
                target=lambda: replies.append(server.request("POST", "/slots/0?action=save", '{"filename": "x"}')))
            with contextlib.ExitStack() as stack:
                with self.saving(server):
                    second.start()
                    time.sleep(0.5)  # it waits by now; if not, it is refused all the same
                    stack.enter_context(server.streaming(prompt="b" + STORY, max_tokens=10**7, **GREEDY))
                second.join(LIMIT)
            self.assertEqual(replies[0][0], 409, replies)
            self.assertEqual(json.loads(replies[0][2])["error"]["code"], "slot_busy")

    def test_what_a_task_waits_for_stays(self):
        """With a window, a text cannot be cut from one that goes on from it. So it stays while a task waits for it."""
        with Server("--sessions", "kept", *WINDOW, "--chunk", "8") as server:
            first = server.complete(STORY, max_tokens=40, **GREEDY)
            server.until("session_files", 2)
            server.complete("b" + LONG, max_tokens=12, **GREEDY)
            server.until("session_files", 4)
            answers = []
            prompt = STORY + text(first)[:-1] + "?!"
            waiting = threading.Thread(
                target=lambda: answers.append(server.complete(prompt, max_tokens=12, **GREEDY)))
            with self.saving(server):
                with server.streaming(prompt=STORY + text(first) + STORY * 9, max_tokens=10**7, **GREEDY):
                    waiting.start()
                    server.until("requests_processing", 2)
                server.until("requests_cancelled_total", 1)
            waiting.join(LIMIT)
            self.assertEqual(cached(answers[0]), first["usage"]["total_tokens"] - 1)
            self.assertEqual(text(answers[0]), out("--prompt", prompt, "--tokens", "12", *WINDOW))

    def test_a_slot_that_is_being_saved(self):
        with self.serve() as server:
            os.unlink(FIRST)
            steps = server.complete(LONG, max_tokens=12, **GREEDY)["usage"]["total_tokens"] - 1
            os.mkfifo("kept/slow")
            replies = []
            saving = threading.Thread(
                target=lambda: replies.append(server.post("/slots/0?action=save", filename="slow")))
            saving.start()
            with open("kept/slow", "rb") as pipe:
                data = pipe.read(8)
                self.assertEqual(text(server.complete("b" + STORY, max_tokens=12, **GREEDY)),
                                 out("--prompt", "b" + STORY, "--tokens", "12"))
                self.assertEqual(replies, [])
                data += pipe.read()
            saving.join(LIMIT)
            self.assertEqual(replies[0]["n_saved"], steps)
            put("kept/copy", data)
            self.assertEqual(server.post("/slots/1?action=restore", filename="copy")["n_restored"], steps)


class Slots(Base):
    def setUp(self):
        shutil.rmtree("kept", ignore_errors=True)

    def do(self, server, action, name=None, slot=0, code=200):
        fields = {} if name is None else {"filename": name}
        return server.post(f"/slots/{slot}?action={action}", code, **fields)

    def kept(self, server):
        return [slot["tokens_kept"] for slot in json.loads(server.get("/slots"))]

    def test_save_restore_erase(self):
        write_pointer("pointer.json", 8)
        for options in [], WINDOW, ["--pointer", "pointer.json", *WINDOW]:
            with self.subTest(options=options):
                self.setUp()
                with Server("--sessions", "kept", *options) as server:
                    answer = server.complete(STORY, max_tokens=40, **GREEDY)
                    steps = answer["usage"]["total_tokens"] - 1
                    self.assertEqual(self.kept(server), [steps, 0, 0, 0])
                    saved = self.do(server, "save", "ferry.bin")
                    self.assertEqual([saved[k] for k in ("id_slot", "filename", "n_saved", "n_written")],
                                     [0, "ferry.bin", steps, os.path.getsize("kept/ferry.bin")])
                    self.assertEqual(self.do(server, "erase"), {"id_slot": 0, "n_erased": steps})
                    self.assertEqual(self.do(server, "erase"), {"id_slot": 0, "n_erased": 0})
                    self.assertEqual(self.kept(server), [0, 0, 0, 0])
                    self.do(server, "save", "nothing.bin", code=400)
                    restored = self.do(server, "restore", "ferry.bin", slot=2)
                    self.assertEqual([restored[k] for k in ("id_slot", "filename", "n_restored", "n_read")],
                                     [2, "ferry.bin", steps, saved["n_written"]])
                    self.assertEqual(self.kept(server), [0, 0, steps, 0])
                    prompt = STORY + text(answer) + " And then?"
                    second = server.complete(prompt, max_tokens=12, **GREEDY)
                    self.assertEqual(cached(second), steps)
                    self.assertEqual(text(second), out("--prompt", prompt, "--tokens", "12", *options))
                # A file with a name stays, and another server can have it.
                shutil.copy("kept/ferry.bin", "ferry.bin")
                with Server("--sessions", "kept", "--disk", "1", *options) as server:
                    self.assertEqual(os.listdir("kept").count("ferry.bin"), 1)
                    self.assertEqual(self.do(server, "restore", "ferry.bin")["n_restored"], steps)
                    self.assertIn("does not fit", self.do(server, "save", "two.bin", code=507)["error"]["message"])

    def test_erasing_a_text_erases_where_its_answer_began(self):
        with Server("--sessions", "kept", *WINDOW) as server:
            first = server.complete(STORY, max_tokens=40, **GREEDY)
            server.complete(STORY + text(first) + STORY, max_tokens=40, **GREEDY)
            server.until("session_files", 3)  # the beginnings of two answers, and the end
            self.do(server, "erase")
            server.until("session_files", 0)
            self.assertEqual(files(), [])
            self.assertEqual(cached(server.complete(STORY, max_tokens=40, **GREEDY)), 0)
            # Another answer to the same needs the beginning.
            server.complete(STORY, max_tokens=40, temperature=2, seed=1)
            server.until("session_files", 3)
            self.do(server, "erase")
            server.until("session_files", 2)
            self.assertEqual(cached(server.complete(STORY, max_tokens=40, **GREEDY)), len(STORY) - 1)
            self.do(server, "erase")
            server.until("session_files", 0)
            self.assertEqual(files(), [])

    def leave_memory(self, server, ask):
        """A text that is read in slot 1 and is then on disk only, where memory keeps one."""
        with server.streaming(prompt="z" + STORY, max_tokens=10**7, **GREEDY):
            answer = ask()
        server.until("requests_cancelled_total", 1)
        return answer

    def test_texts_that_only_the_disk_has(self):
        with Server("--sessions", "kept", "--keep", "1") as server:
            answer = self.leave_memory(server, lambda: server.complete(STORY, max_tokens=40, **GREEDY))
            server.until("session_files", 2)
            with starved(server) as post:
                status, refused = post("/slots/1?action=save", filename="x")
            self.assertEqual((status, refused["error"]["type"]), (500, "server_error"))
            self.assertEqual(self.do(server, "save", "x", 1)["n_saved"], answer["usage"]["total_tokens"] - 1)
        self.setUp()
        with Server("--sessions", "kept", "--keep", "1") as server:
            self.leave_memory(server, lambda: server.complete(STORY, max_tokens=40, **GREEDY))
            server.until("session_files", 2)
            for path in files():
                damage(path, -20)
            self.assertIn("no text", self.do(server, "save", "x", 1, 400)["error"]["message"])
            self.assertEqual(len(files()), 2)

    def test_a_text_without_a_token_behind_it(self):
        """A prompt that is only scored is read to its end. A file that has the same tokens has one more, which memory
        does not know."""
        with Server("--sessions", "kept") as server:
            answer = server.complete(STORY, max_tokens=40, **GREEDY)
        prompt = STORY + text(answer)[:-1]
        with Server("--sessions", "kept", "--keep", "1") as server:
            self.leave_memory(
                server, lambda: server.complete(prompt, max_tokens=0, echo=True, logprobs=1, **GREEDY))
            self.assertEqual(self.kept(server)[1], len(prompt))
            self.assertIn("no text", self.do(server, "save", "x", 1, 400)["error"]["message"])

    def test_what_is_refused(self):
        put("secret.bin", b"secret")
        with Server("--sessions", "kept", *WINDOW) as server:
            server.complete(STORY, **GREEDY)
            self.do(server, "save", "good.bin")
            for action, name, slot, code, pattern in [
                ("save", "../x", 0, 400, "must be a name"), ("restore", "../secret.bin", 0, 400, "must be a name"),
                ("restore", "/etc/passwd", 0, 400, "must be a name"), ("save", "", 0, 400, "must be a name"),
                ("save", ".x", 0, 400, "must be a name"), ("save", "kept-1", 0, 400, "must be a name"),
                ("save", "lock", 0, 400, "must be a name"), ("save", "a" * 129, 0, 400, "must be a name"),
                ("save", "a\0b", 0, 400, "filename"), ("save", 7, 0, 400, "must be a string"),
                ("save", None, 0, 400, "filename"), ("save", "x", 4, 404, "no slot 4"),
                ("save", "x", "-1", 404, "no slot -1"), ("save", "x", "1x", 404, "no slot"),
                ("steal", "x", 0, 400, "save, restore or erase"), ("restore", "no.bin", 0, 400, "no.bin"),
            ]:
                with self.subTest(action=action, name=name, slot=slot):
                    error = self.do(server, action, name, slot, code)["error"]
                    self.assertEqual(sorted(error), ["code", "message", "param", "type"])
                    self.assertRegex(error["message"], pattern)
            self.assertEqual(server.request("GET", "/slots/0")[0], 405)
            self.assertEqual(server.request("POST", "/slots/0?action=erase", headers={"Content-Type": "a/b"})[0], 415)
            # A good file, of another window; then damaged.
            with open("kept/good.bin", "r+b") as file:
                file.seek(-20, os.SEEK_END)
                file.write(b"damaged!")
            self.assertIn("damaged", self.do(server, "restore", "good.bin", code=400)["error"]["message"])
            shutil.copy(files()[0], "window.bin")
        with Server("--sessions", "kept") as server:
            shutil.copy("window.bin", "kept/window.bin")
            self.assertIn("window", self.do(server, "restore", "window.bin", code=400)["error"]["message"])
            with server.streaming(prompt=STORY, max_tokens=10**7, **GREEDY):
                self.assertEqual(self.do(server, "erase", code=409)["error"]["code"], "slot_busy")
                self.assertEqual(self.do(server, "erase", slot=1)["n_erased"], 0)
        with Server() as server:
            server.complete(STORY, **GREEDY)
            self.assertIn("--sessions", self.do(server, "save", "x", code=501)["error"]["message"])
            self.assertEqual(self.do(server, "erase")["n_erased"], len(STORY) + 15)
            self.assertEqual(cached(server.complete(STORY, **GREEDY)), 0)


if __name__ == "__main__":
    features = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    if "microhttpd: yes" not in features:
        print("skipped: this build has no HTTP server", file=sys.stderr)
        sys.exit(77)
    main({"plain": {"context": 8192}, "other": {"seed": 2}})
