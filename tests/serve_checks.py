"""rosatune serve on a tiny model, from outside. The first argument is the program."""
import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest.mock

sys.dont_write_bytecode = True
from tiny_model import (
    LIMIT, PROGRAM, THETA, THINKING, WINDOW, Base, find_place, logits, main, message, out, put, raise_seen,
    run, write_adapter, write_pointer, write_table,
)
from tiny_server import CHAT, COMPLETIONS, GREEDY, STORY, Server, cached, clients, resident, said, text


class Answers(Base):
    def test_completions_are_those_of_generate(self):
        for options in [], WINDOW:
            with self.subTest(options=options), Server(*options) as server:
                wanted = out("--prompt", STORY, "--tokens", "30", *options)
                answer = server.complete(STORY, max_tokens=30, **GREEDY)
                self.assertEqual(text(answer), wanted)
                self.assertEqual(answer["object"], "text_completion")
                self.assertEqual(answer["model"], "plain")
                self.assertEqual(answer["choices"][0]["finish_reason"], "length")
                self.assertEqual({k: answer["usage"][k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")},
                                 {"prompt_tokens": 22, "completion_tokens": 30, "total_tokens": 52})
                self.assertEqual(text(server.complete(list(STORY.encode()), max_tokens=30, **GREEDY)), wanted)
                self.assertEqual(len(text(server.complete(STORY, **GREEDY))), 16)
                drawn = out("--prompt", STORY, "--tokens", "30", "--temperature", "0.9", "--seed", "7", "--top-k", "20",
                            "--top-p", "0.95", *options)
                fields = dict(max_tokens=30, temperature=0.9, seed=7, top_k=20, top_p=0.95)
                self.assertEqual(text(server.complete(STORY, **fields)), drawn)

    def test_adapters_and_pointers(self):
        write_adapter("adapter")
        write_pointer("pointer.json", 8)
        options = ["--adapter", "adapter", "--pointer", "pointer.json"]
        with Server(*options) as server:
            prompt = STORY * 4
            wanted = out("--prompt", prompt, "--tokens", "40", *options)
            self.assertEqual(text(server.complete(prompt, max_tokens=40, **GREEDY)), wanted)
            again = server.complete(prompt, max_tokens=40, **GREEDY)
            self.assertEqual((text(again), cached(again)), (wanted, len(prompt) - 1))

    def test_several_prompts(self):
        with Server("--parallel", "2") as server:
            prompts = ["A story.", STORY, "x", "A story."]
            for given in prompts, [list(p.encode()) for p in prompts]:
                answer = server.complete(given, max_tokens=9, **GREEDY)
                self.assertEqual([c["index"] for c in answer["choices"]], [0, 1, 2, 3])
                for i, prompt in enumerate(prompts):
                    self.assertEqual(text(answer, i), out("--prompt", prompt, "--tokens", "9"))

    def test_stop_strings_and_ends(self):
        with Server() as server:
            whole = text(server.complete(STORY, max_tokens=60, **GREEDY))
            for stop in whole[30:33], ["never said", whole[30:33]]:
                answer = server.complete(STORY, max_tokens=60, stop=stop, **GREEDY)
                self.assertEqual(text(answer), whole[: whole.index(whole[30:33])])
                self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
        with Server(model="ends.gguf") as server:
            answer = server.complete("A story.", max_tokens=500, **GREEDY)
            self.assertEqual(text(answer), out("--prompt", "A story.", "--tokens", "500", model="ends.gguf"))
            self.assertEqual(answer["choices"][0]["finish_reason"], "stop")

    def test_chats(self):
        with Server() as server:
            prompt = message("system", "Be brief.") + message("user", "Who?") + "<|im_start|>assistant\n"
            wanted = out("--prompt", prompt, "--tokens", "20")
            answer = server.chat(("system", "Be brief."), ("user", "Who?"), max_tokens=20, **GREEDY)
            self.assertEqual(said(answer), wanted)
            self.assertEqual(answer["object"], "chat.completion")
            parts = [{"type": "text", "text": "Wh"}, {"type": "text", "text": "o?"}]
            answer = server.chat(("developer", "Be brief."), ("user", parts), max_completion_tokens=20, **GREEDY)
            self.assertEqual(said(answer), wanted)
        with Server(model="nochat.gguf") as server:
            self.assertIn("no chat template", server.post(CHAT, 400, messages=[dict(role="user", content="a")])
                          ["error"]["message"])

    def test_streams_add_up(self):
        with Server() as server:
            fields = dict(max_tokens=30, logprobs=2, stop=["zzz"], **GREEDY)
            whole = server.complete(STORY, **fields)["choices"][0]
            events = server.stream(COMPLETIONS, prompt=STORY, stream_options={"include_usage": True}, **fields)
            usage = events.pop()
            self.assertEqual((usage["choices"], usage["usage"]["completion_tokens"]), ([], 30))
            choices = [event["choices"][0] for event in events]
            self.assertEqual("".join(c["text"] for c in choices), whole["text"])
            for name in "tokens", "token_logprobs", "top_logprobs", "text_offset":
                self.assertEqual([x for c in choices if c["logprobs"] for x in c["logprobs"][name]],
                                 whole["logprobs"][name])
            self.assertEqual([c["finish_reason"] for c in choices], [None] * (len(choices) - 1) + ["length"])
            messages = [{"role": "user", "content": "Who?"}]
            whole = server.post(CHAT, messages=messages, max_tokens=20, logprobs=True, top_logprobs=3, **GREEDY)
            events = server.stream(CHAT, messages=messages, max_tokens=20, logprobs=True, top_logprobs=3, **GREEDY)
            deltas = [event["choices"][0]["delta"] for event in events]
            self.assertEqual(deltas[0]["role"], "assistant")
            self.assertEqual("".join(d.get("content", "") for d in deltas), said(whole))
            scores = [x for e in events for x in (e["choices"][0]["logprobs"] or {"content": []})["content"]]
            self.assertEqual(scores, whole["choices"][0]["logprobs"]["content"])
            # Several prompts in one stream.
            events = server.stream(COMPLETIONS, prompt=["A story.", STORY], max_tokens=9, **GREEDY)
            for i, prompt in enumerate(["A story.", STORY]):
                parts = [c["text"] for e in events for c in e["choices"] if c["index"] == i]
                self.assertEqual("".join(parts), out("--prompt", prompt, "--tokens", "9"))

    def test_scores_are_those_of_logits(self):
        prompt = STORY * 3  # more than are scored at a time
        tokens = list(prompt.encode())
        for options in [], WINDOW:
            with self.subTest(options=options), Server(*options) as server:
                for most in 0, 5:
                    answer = server.complete(prompt, max_tokens=most, echo=True, logprobs=3, **GREEDY)
                    made = text(answer)[len(prompt):]
                    self.assertEqual(text(answer), prompt + made)
                    self.assertEqual(len(made), most)
                    self.assertEqual(cached(answer), 0)
                    scores = answer["choices"][0]["logprobs"]
                    whole = tokens + list(made.encode())
                    self.assertEqual(scores["tokens"], [chr(token) for token in whole])
                    self.assertEqual(scores["text_offset"], list(range(len(whole))))
                    self.assertEqual((scores["token_logprobs"][0], scores["top_logprobs"][0]), (None, None))
                    for t, row in enumerate(logits(whole, *options)[:-1]):
                        total = math.log(math.fsum(math.exp(x) for x in row))
                        self.assertAlmostEqual(scores["token_logprobs"][t + 1], row[whole[t + 1]] - total, delta=1e-9)
                        best = sorted(range(256), key=lambda i: -row[i])[:3]
                        top = scores["top_logprobs"][t + 1]
                        self.assertEqual(len(top), 3)
                        self.assertAlmostEqual(max(top.values()), row[best[0]] - total, delta=1e-9)
                # The same numbers without echo.
                alone = server.complete(prompt, max_tokens=5, logprobs=3, **GREEDY)["choices"][0]["logprobs"]
                self.assertEqual(alone["token_logprobs"], scores["token_logprobs"][-5:])
                self.assertEqual(alone["top_logprobs"], scores["top_logprobs"][-5:])

    def test_text_that_is_no_text(self):
        with Server() as server:
            # Half of a character at the end of a prompt, and a NUL.
            answer = server.complete([65, 0, 0xc3], max_tokens=2, echo=True, logprobs=1, **GREEDY)
            scores = answer["choices"][0]["logprobs"]
            self.assertEqual(scores["tokens"][:3], ["A", "\0", "bytes:\\xc3"])
            self.assertEqual(text(answer)[:3], "A\0\ufffd")


class Reading(Base):
    def test_a_second_turn_reads_only_what_is_new(self):
        write_adapter("adapter")
        for options in [], WINDOW, ["--adapter", "adapter"]:
            with self.subTest(options=options), Server(*options) as server:
                turns = [("user", "Who was the ferryman of the river?")]
                first = server.chat(*turns, max_tokens=12, **GREEDY)
                self.assertEqual(cached(first), 0)
                turns += [("assistant", said(first)), ("user", "And where did he live?")]
                second = server.chat(*turns, max_tokens=12, **GREEDY)
                # All of the first turn but the last token of its answer, which was not read.
                self.assertEqual(cached(second), first["usage"]["total_tokens"] - 1)
                # Another try, a branch, and the same in a server that has read nothing.
                again = server.chat(*turns, max_tokens=12, **GREEDY)
                self.assertEqual(cached(again), second["usage"]["prompt_tokens"] - 1)
                branch = turns[:2] + [("user", "Why?")]
                other = server.chat(*branch, max_tokens=12, **GREEDY)
                self.assertGreater(cached(other), first["usage"]["prompt_tokens"])
                with Server(*options) as anew:
                    fresh = anew.chat(*turns, max_tokens=12, **GREEDY)
                    self.assertEqual(cached(fresh), 0)
                with Server(*options) as anew:
                    fresh_other = anew.chat(*branch, max_tokens=12, **GREEDY)
                self.assertEqual(said(second), said(fresh))
                self.assertEqual(said(again), said(fresh))
                self.assertEqual(said(other), said(fresh_other))

    def test_a_window_goes_back_to_where_the_answer_began(self):
        with Server(*WINDOW, "--chunk", "8") as server:
            # The answer is longer than what a ring of window and chunk can give back.
            first = server.complete(STORY, max_tokens=300, **GREEDY)
            again = server.complete(STORY, max_tokens=300, **GREEDY)
            self.assertEqual(cached(again), len(STORY) - 1)
            self.assertEqual(text(again), text(first))
            third = server.complete(STORY, max_tokens=300, **GREEDY)
            self.assertEqual((text(third), cached(third)), (text(first), len(STORY) - 1))

    def test_nothing_is_kept_beyond_the_limits(self):
        with Server("--keep", "0") as server:
            server.complete(STORY, **GREEDY)
            self.assertEqual(cached(server.complete(STORY, **GREEDY)), 0)
            self.assertEqual(server.metric("sessions"), 0)
        with Server("--keep", "2") as server:
            for letter in "abcd":
                server.complete(letter + STORY, **GREEDY)
            self.assertEqual(server.metric("sessions"), 2)
            self.assertEqual(cached(server.complete("d" + STORY, **GREEDY)), len(STORY))
            self.assertEqual(cached(server.complete("a" + STORY, **GREEDY)), 0)

    def test_a_text_that_does_not_fit_is_refused(self):
        with Server("--memory", "200k") as server:
            error = server.post(COMPLETIONS, 400, prompt="x" * 5000, max_tokens=1)["error"]
            self.assertEqual(error["code"], "context_length_exceeded")
            self.assertEqual(len(text(server.complete("x" * 100, max_tokens=5, **GREEDY))), 5)


def chain_of(tokens, t, delay, links):
    """The places after t and the lengths of their matches, by the definition."""
    place, length = find_place(tokens, t, delay)
    while place >= 0 and links:
        yield place, length
        links -= 1
        place, further = find_place(tokens, place - 1, 0) if place else (-1, 0)
        length = min(length, further)


class Memory(Base):
    """Where an answer looked, and the answer without looking."""

    PROMPT = STORY * 4
    MOST = 40
    PLACES = {"places": True}

    def check(self, answer, by, delay, links, weights):
        """Compares the places of an answer with the definition."""
        choice = answer["choices"][0]
        told = choice["rosatune"]["tokens"]
        tokens = list((self.PROMPT + choice["text"]).encode())
        first = len(self.PROMPT)
        self.assertEqual([t["id"] for t in told], tokens[first:])
        self.assertEqual([(t["position"], t["offset"]) for t in told], [(first + i, i) for i in range(self.MOST)])
        found = 0
        for token in told:
            t = token["position"]
            places = [p for p in token["places"] if p["by"] == by]
            wanted = [*chain_of(tokens, t - 1, delay, links)]
            self.assertEqual([(p["position"], p["length"]) for p in places], wanted)
            self.assertEqual([p["hit"] for p in places], [tokens[place] == tokens[t] for place, _ in wanted])
            for place, weight in zip(places, weights([length for _, length in wanted])):
                self.assertAlmostEqual(place["weight"], weight, delta=1e-5)
            found += len(wanted)
        self.assertGreater(found, self.MOST)
        self.assertGreater(choice["rosatune"]["bytes"]["attention"], 0)

    def test_places_of_a_pointer(self):
        write_pointer("pointer.json", 8)

        def shares(lengths):
            raw = [math.exp(THETA[i][min(length, 12)]) for i, length in enumerate(lengths)]
            return [a / (1 + sum(raw)) for a in raw]

        with Server(*WINDOW, "--pointer", "pointer.json") as server:
            plain = server.complete(self.PROMPT, max_tokens=self.MOST, **GREEDY)
            self.assertNotIn("rosatune", plain["choices"][0])
            answer = server.complete(self.PROMPT, max_tokens=self.MOST, rosatune=self.PLACES, **GREEDY)
            self.assertEqual(text(answer), text(plain))
            self.check(answer, "pointer", 8, 2, shares)
            # The context's own: the same text, and memory off.
            for _ in range(2):
                off = server.complete(self.PROMPT, max_tokens=self.MOST, rosatune={"memory": False} | self.PLACES,
                                      **GREEDY)
                self.assertEqual(text(off), out("--prompt", self.PROMPT, "--tokens", str(self.MOST), *WINDOW))
                self.assertEqual(cached(off), len(self.PROMPT) - 1)
                self.assertEqual([t["places"] for t in off["choices"][0]["rosatune"]["tokens"]], [[]] * self.MOST)
            again = server.complete(self.PROMPT, max_tokens=self.MOST, rosatune=self.PLACES, **GREEDY)
            self.assertEqual(again["choices"], answer["choices"])
            self.assertTrue(json.loads(server.get("/props"))["pointer"])

    def test_a_table_of_tokens_seen(self):
        write_table("table.json", 8)
        options = [*WINDOW, "--pointer", "table.json"]
        tokens = [*self.PROMPT.encode()]
        raised = [raise_seen(row, tokens[: t + 1], 8) for t, row in enumerate(logits(tokens, *WINDOW)[:-1])]
        with Server(*options, "--chunk", "16") as server:
            for _ in range(2):  # anew, and going back in what was kept
                answer = server.complete(self.PROMPT, max_tokens=self.MOST, **GREEDY)
                self.assertEqual(text(answer), out("--prompt", self.PROMPT, "--tokens", str(self.MOST), *options))
            answer = server.complete(self.PROMPT, max_tokens=0, echo=True, logprobs=1)
            scores = answer["choices"][0]["logprobs"]["token_logprobs"][1:]
            self.assertEqual(len(scores), len(raised))
            for row, token, score in zip(raised, tokens[1:], scores):
                self.assertAlmostEqual(row[token], score, delta=1e-4)

    def test_places_of_an_adapter(self):
        gains = write_adapter("adapter", chain=3)

        def means(lengths):
            return [sum(layer[i][min(length, 9)] for layer in gains) / len(gains) for i, length in enumerate(lengths)]

        with Server("--adapter", "adapter") as server:
            self.assertTrue(json.loads(server.get("/props"))["adapter"])
            wanted = out("--prompt", self.PROMPT, "--tokens", str(self.MOST), "--adapter", "adapter")
            silent = out("--prompt", self.PROMPT, "--tokens", str(self.MOST), *WINDOW)
            self.assertNotEqual(wanted, silent)
            answer = server.complete(self.PROMPT, max_tokens=self.MOST, rosatune=self.PLACES, **GREEDY)
            self.assertEqual(text(answer), wanted)
            self.check(answer, "adapter", 8, 3, means)
            # An adapter that reads nothing is no adapter. Texts read with it on do not serve requests without it.
            for known in 0, len(self.PROMPT) - 1:
                off = server.complete(self.PROMPT, max_tokens=self.MOST, rosatune={"memory": False}, **GREEDY)
                self.assertEqual((text(off), cached(off)), (silent, known))
                on = server.complete(self.PROMPT, max_tokens=self.MOST, **GREEDY)
                self.assertEqual((text(on), cached(on)), (wanted, len(self.PROMPT) - 1))
            drawn = dict(max_tokens=self.MOST, temperature=0.9, seed=5, rosatune={"memory": False})
            self.assertEqual(text(server.complete(self.PROMPT, **drawn)), text(server.complete(self.PROMPT, **drawn)))

    def test_streams_add_up(self):
        write_pointer("pointer.json", 8)
        messages = [{"role": "user", "content": self.PROMPT}]
        with Server(*WINDOW, "--pointer", "pointer.json", "--chunk", "16") as server:
            for path, fields in (COMPLETIONS, {"prompt": self.PROMPT}), (CHAT, {"messages": messages}):
                asked = fields | GREEDY | {"max_tokens": 30}
                whole = server.post(path, rosatune=self.PLACES, **asked)["choices"][0]
                events = server.stream(path, rosatune=self.PLACES | {"progress": True}, **asked)
                choices = [event["choices"][0] for event in events if event["choices"]]
                self.assertEqual([t for c in choices for t in c["rosatune"]["tokens"]], whole["rosatune"]["tokens"])
                self.assertEqual(choices[-1]["rosatune"]["bytes"], whole["rosatune"]["bytes"])
                read = [event["rosatune"] for event in events if not event["choices"]]
                self.assertEqual(read[0]["cached_tokens"], read[0]["prompt_tokens"] - 1)
            events = server.stream(COMPLETIONS, prompt="Anew: " + self.PROMPT, max_tokens=1,
                                   rosatune={"progress": True})
            read = [event["rosatune"]["tokens_read"] for event in events if not event["choices"]]
            self.assertEqual(read, sorted(set(read)))
            self.assertIn(len(read), range(1, len(self.PROMPT)))

    def test_tokens_of_a_text(self):
        with Server() as server:
            answer = server.post("/tokenize", prompt="h\u00e9 \U0001f600.")
            self.assertEqual(answer["tokens"], [*"h\u00e9 \U0001f600.".encode()])
            self.assertEqual((answer["count"], answer["text"]), (9, "h\u00e9 \U0001f600."))
            # Bytes that begin a character stand where it will.
            self.assertEqual(answer["offsets"], [0, 1, 1, 2, 3, 3, 3, 3, 4])
            said = message("user", "Who?") + "<|im_start|>assistant\n"
            answer = server.post("/tokenize", messages=[{"role": "user", "content": "Who?"}])
            self.assertEqual(answer["text"], said)
            self.assertEqual(answer["count"],
                             server.chat(("user", "Who?"), max_tokens=1)["usage"]["prompt_tokens"])
            self.assertIn("give one", server.post("/tokenize", 400, prompt=["a", "b"])["error"]["message"])
            self.assertEqual(server.post("/tokenize", 400)["error"]["param"], "prompt")


class Together(Base):
    def test_clients_at_once_get_what_each_gets_alone(self):
        write_adapter("adapter")
        for options in [], ["--adapter", "adapter"]:
            prompts = [STORY * n + "abc"[n % 3] for n in range(1, 9)]
            alone = [out("--prompt", p, "--tokens", "40", *options) for p in prompts]
            with self.subTest(options=options), Server(*options, "--chunk", "16", "--parallel", "3") as server:
                answers = [None] * len(prompts)

                def ask(i):
                    answers[i] = server.complete(prompts[i], max_tokens=40, logprobs=1, **GREEDY)

                clients(len(prompts), ask)
                self.assertEqual([*map(text, answers)], alone)
                self.assertEqual(server.metric("requests_success_total"), len(prompts))
                # Bit for bit: numbers in JSON read back as they were.
                for prompt, answer in zip(prompts, answers):
                    with_none = server.complete(prompt, max_tokens=40, logprobs=1, **GREEDY)
                    self.assertEqual(answer["choices"][0]["logprobs"], with_none["choices"][0]["logprobs"])

    def test_those_who_write_share_a_pass(self):
        with Server("--parallel", "4") as server:
            answer = server.complete([STORY, STORY[1:], STORY[2:], STORY[3:]], max_tokens=100, **GREEDY)
            self.assertEqual(text(answer, 2), out("--prompt", STORY[2:], "--tokens", "100"))
            # One turn to read, which gives the first token, and one for each of the others.
            self.assertEqual(server.metric("n_decode_total"), 100)
            self.assertEqual(server.metric("n_busy_slots_per_decode"), 4)

    def test_a_long_prompt_does_not_stop_those_who_write(self):
        with Server("--parallel", "2", "--chunk", "16") as server:
            with server.asking(prompt=STORY * 4000, max_tokens=1, **GREEDY):
                server.until("requests_processing", 1)
                self.assertEqual(len(text(server.complete("x", max_tokens=40, **GREEDY))), 40)
                self.assertEqual(server.metric("requests_success_total"), 1)  # the other one is still reading
            server.until("requests_cancelled_total", 1)

    def test_a_request_of_many_prompts_lets_others_in(self):
        with Server("--parallel", "2") as server:
            prompts = [f"{i} {STORY}" for i in range(200)]
            batch = threading.Thread(target=server.complete, args=(prompts,), kwargs={"max_tokens": 200, **GREEDY})
            batch.start()
            server.until("requests_processing", 2)
            server.complete("x", max_tokens=2, **GREEDY)
            self.assertLess(server.metric("requests_success_total"), 200)
            batch.join(LIMIT)
            self.assertEqual(server.metric("requests_success_total"), 201)

    def test_a_client_that_goes_away_frees_its_slot(self):
        with Server("--parallel", "1") as server:
            for ask in server.asking, server.streaming:
                before = server.metric("requests_cancelled_total")
                with ask(prompt=STORY, max_tokens=10**8, **GREEDY):
                    server.until("requests_processing", 1)
                    self.assertTrue(json.loads(server.get("/slots"))[0]["is_processing"])
                server.until("requests_cancelled_total", before + 1)
                self.assertEqual(len(text(server.complete(STORY, max_tokens=5, **GREEDY))), 5)

    def slow_reader(self, server, stack):
        """A connection whose answer is long and is there, but is not read."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(LIMIT)
        connection.connect(("127.0.0.1", server.port))
        stack.enter_context(contextlib.closing(connection))
        body = json.dumps({"prompt": [f"{i} {STORY * 20}" for i in range(20)], "max_tokens": 0, "echo": True,
                           "logprobs": 20, **GREEDY})
        connection.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
                           f"application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        server.until("requests_success_total", 20)
        return connection

    def answer(self, connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        data = b""
        while more := connection.recv(1 << 20):
            data += more
        return json.loads(data.split(b"\r\n\r\n", 1)[1])

    def test_a_slow_reader_does_not_stay_in_the_queue(self):
        with Server("--queue", "1") as server, contextlib.ExitStack() as stack:
            connection = self.slow_reader(server, stack)
            for _ in range(20 * LIMIT):  # until the answer is made
                status = server.request("POST", COMPLETIONS, json.dumps({"prompt": "a", "max_tokens": 1}))[0]
                if status == 200:
                    break
                time.sleep(0.05)
            self.assertEqual(status, 200)
            # And it gets its answer to the end, also when the server ends.
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            self.assertEqual(len(self.answer(connection)["choices"]), 20)
            self.assertEqual(server.process.wait(LIMIT), 0)

    def test_prompts_that_are_scored_release_what_reading_takes(self):
        """32 rows of logits for each of 256 prompts would be 8.5 MB."""
        with open(PROGRAM, "rb") as file:
            if b"__tsan_init" in file.read():
                self.skipTest("ThreadSanitizer takes memory of its own for all that the program uses")
        options = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=0:thread_local_quarantine_size_kb=0"
        with unittest.mock.patch.dict(os.environ, {"ASAN_OPTIONS": options}), Server("--keep", "0") as server:
            fields = dict(max_tokens=0, echo=True, logprobs=1, **GREEDY)
            server.complete([STORY * 2] * 8, **fields)
            before = resident(server, "VmHWM")
            server.complete([STORY * 2] * 256, **fields)
            self.assertLess(resident(server, "VmHWM") - before, 6e6)

    def test_too_many(self):
        with Server("--parallel", "1", "--queue", "1") as server:
            with server.streaming(prompt=STORY, max_tokens=10**8, **GREEDY):
                status, headers, body = server.request("POST", COMPLETIONS, json.dumps({"prompt": "a"}))
                self.assertEqual((status, headers["Retry-After"]), (429, "1"))
                self.assertEqual(json.loads(body)["error"]["type"], "rate_limit_error")
                self.assertEqual(json.loads(server.get("/health")), {"status": "ok"})
            server.until("requests_cancelled_total", 1)
            server.complete("a", max_tokens=1)


class Tasks(Base):
    def test_lines_of_ruler_score_as_in_eval(self):
        """A task of RULER asked through the server, scored by `score`, beside the same task run by `eval`."""
        prompts = [STORY * n + " The ferryman's number is 417. What is it?" for n in range(1, 6)]
        lines = [{"index": i, "input": prompt, "outputs": [letter], "length": len(prompt)}
                 for i, (prompt, letter) in enumerate(zip(prompts, "qeyi7"))]
        with open("niah_single_1.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        result = json.loads(run("eval", "--model", "plain.gguf", *WINDOW, "--conditions", "window", "--tokens", "12",
                                "--out", "eval.jsonl", "--json", "niah_single_1.jsonl").stdout)
        wanted = result["tasks"]["niah_single_1"]["conditions"]["window"]["score"]
        with Server(*WINDOW) as server:
            for line in lines:
                line["pred"] = text(server.complete(line["input"], max_tokens=12, **GREEDY))
        with open("eval.jsonl", encoding="utf-8") as file:
            records = [json.loads(line) for line in file][1:]
        self.assertEqual([line["pred"] for line in lines], [record["answer"] for record in records])
        with open("asked.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        scored = json.loads(run("score", "--metric", "match-all", "--json", "asked.jsonl").stdout)
        self.assertEqual(scored["files"]["asked.jsonl"]["score"], wanted)
        self.assertGreater(wanted, 0)


class Soak(Base):
    """Many clients, half of them broken or slow: ten minutes with ROSATUNE_TEST_LONG, else a few rounds."""

    SECONDS = 600 if os.environ.get("ROSATUNE_TEST_LONG") else 0
    ROUNDS = 20  # at least
    PROMPTS = ["A story.", STORY, STORY * 9, "Ferry"]

    def connect(self, server):
        return contextlib.closing(socket.create_connection(("127.0.0.1", server.port), LIMIT))

    def whole(self, server, prompt, wanted):
        self.assertEqual(text(server.complete(prompt, max_tokens=20, **GREEDY)), wanted)

    def streamed(self, server, prompt, wanted):
        events = server.stream(COMPLETIONS, prompt=prompt, max_tokens=20, **GREEDY)
        self.assertEqual("".join(event["choices"][0]["text"] for event in events), wanted)

    def head(self, body, length):
        return (f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {length}\r\n\r\n").encode() + body

    def slow(self, server, prompt, wanted):
        """A body in pieces, and a reader that takes its time: an answer all the same."""
        body = json.dumps({"prompt": prompt, "max_tokens": 20, **GREEDY}).encode()
        with self.connect(server) as connection:
            connection.sendall(self.head(b"", len(body)))
            for i in range(0, len(body), 50):
                connection.sendall(body[i: i + 50])
                time.sleep(0.01)
            answer = b""
            while b"\r\n\r\n" not in answer or not answer.endswith(b"}\n"):
                answer += connection.recv(64)
            self.assertEqual(text(json.loads(answer.split(b"\r\n\r\n")[1])), wanted)

    def leaves(self, server, prompt, _):
        """Asks for much and goes away at once, or after the first bytes."""
        body = json.dumps({"prompt": prompt, "max_tokens": 10**7, "stream": True, **GREEDY}).encode()
        with self.connect(server) as connection:
            connection.sendall(self.head(body, len(body)))
            if len(prompt) % 2:
                connection.recv(10)

    def stops_in_the_middle(self, server, prompt, _):
        with self.connect(server) as connection:
            connection.sendall(self.head(b'{"prompt": "' + prompt.encode(), 10**6))

    def speaks_nonsense(self, server, prompt, _):
        with self.connect(server) as connection, contextlib.suppress(OSError):
            connection.sendall(prompt.encode() + b"\0\xff\r\n\r\n")
            connection.recv(100)

    def visit(self, server, seconds):
        """All kinds of clients at once, for so long. Returns how many visits of each kind there were."""
        kinds = [self.whole, self.streamed, self.slow, self.leaves, self.stops_in_the_middle, self.speaks_nonsense]
        visits, until = [0] * len(kinds), time.monotonic() + seconds

        def client(number):
            i = 0
            while i < self.ROUNDS or time.monotonic() < until:
                which, kind = (number + i) % len(self.PROMPTS), (number + 5 * i) % len(kinds)
                kinds[kind](server, self.PROMPTS[which], self.answers[which])
                visits[kind] += 1
                i += 1

        clients(6, client)
        server.until("requests_processing", 0)
        return visits

    def test_good_requests_are_not_lost(self):
        self.answers = [out("--prompt", prompt, "--tokens", "20") for prompt in self.PROMPTS]
        shutil.rmtree("soak", ignore_errors=True)
        with Server("--parallel", "3", "--keep", "6", "--sessions", "soak", "--disk", "1M") as server:
            self.visit(server, self.SECONDS / 20)  # all that is kept is there, and all memory that threads keep
            start = resident(server)
            visits = self.visit(server, self.SECONDS)
            end = resident(server)
            print(f"soak: {sum(visits[:3])} good requests, {sum(visits[3:])} broken ones; "
                  f"{start / 1e6:.1f} MB at the start, {end / 1e6:.1f} MB at the end", file=sys.stderr)
            self.assertLess(end - start, 32e6)
            self.assertEqual(server.metric("requests_failed_total"), 0)
            self.assertLess(server.metric("session_file_bytes"), 2**20)
            self.assertEqual(server.end(signal.SIGTERM)[0], 0)


class Refusals(Base):
    def refuse(self, server, code, param, pattern, path=COMPLETIONS, **fields):
        with self.subTest(fields=str(fields)[:80]):
            error = server.post(path, code, **fields)["error"]
            self.assertEqual(sorted(error), ["code", "message", "param", "type"])
            self.assertEqual((error["type"], error["param"]), ("invalid_request_error", param))
            self.assertRegex(error["message"], pattern)
            return error

    def test_what_cannot_be_obeyed(self):
        with Server() as server:
            for param, pattern, fields in [
                ("prompt", "missing", {}),
                ("prompt", "must be a string", {"prompt": {"a": 1}}),
                ("prompt", "must be a string", {"prompt": True}),
                ("prompt", "0 prompts", {"prompt": []}),
                ("prompt", "empty", {"prompt": ""}),
                ("prompt", "empty", {"prompt": [[]]}),
                ("prompt", "must be a whole number", {"prompt": [1, "a"]}),
                ("prompt", "must be 0 or more", {"prompt": [1, -1]}),
                ("prompt", "no token id", {"prompt": [2**40]}),
                ("prompt", "token 1 is 1000; the model's are below", {"prompt": [1, 1000]}),
                ("temperature", "must be a number", {"prompt": "a", "temperature": "hot"}),
                ("temperature", "from 0 to", {"prompt": "a", "temperature": -1}),
                ("top_p", "from 0 to 1", {"prompt": "a", "top_p": 2}),
                ("max_tokens", "0 or more", {"prompt": "a", "max_tokens": -1}),
                ("max_tokens", "whole number", {"prompt": "a", "max_tokens": 1.5}),
                ("seed", "whole number", {"prompt": "a", "seed": "x"}),
                ("repeat_last_n", "from 0 to", {"prompt": "a", "repeat_last_n": 10**15}),
                ("n", "only 1", {"prompt": "a", "n": 2}),
                ("presence_penalty", "only 0", {"prompt": "a", "presence_penalty": 1}),
                ("logprobs", "from 0 to 20", {"prompt": "a", "logprobs": 100}),
                ("stop", "empty", {"prompt": "a", "stop": ""}),
                ("stop", "must be a string", {"prompt": "a", "stop": [1]}),
                ("stop", "at most", {"prompt": "a", "stop": ["x"] * 100}),
                ("stream", "true or false", {"prompt": "a", "stream": 1}),
                ("logit_bias", "not known", {"prompt": "a", "logit_bias": {"1": 2}}),
                ("model", "must be a string", {"prompt": "a", "model": 1}),
                ("rosatune", "must be an object", {"prompt": "a", "rosatune": True}),
                ("rosatune", "true or false", {"prompt": "a", "rosatune": {"places": 1}}),
                ("rosatune", "rosatune.window is not known", {"prompt": "a", "rosatune": {"window": 1}}),
            ]:
                self.refuse(server, 400, param, pattern, **fields)
            for param, pattern, fields in [
                ("messages", "missing", {}),
                ("messages", "empty", {"messages": []}),
                ("messages", "must be an array", {"messages": "a"}),
                ("messages", "must be an object", {"messages": ["a"]}),
                ("messages", "role", {"messages": [{"role": "wizard", "content": "a"}]}),
                ("messages", "must be a string", {"messages": [{"role": "user", "content": 1}]}),
                ("messages", "image_url", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
                ("tools", "not known", {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}),
                ("top_logprobs", "needs logprobs", {"messages": [], "top_logprobs": 2}),
                ("response_format", "text only", {"messages": [], "response_format": {"type": "json_object"}}),
            ]:
                self.refuse(server, 400, param, pattern, CHAT, **fields)
            error = self.refuse(server, 404, "model", "other is not served here; plain is", prompt="a", model="other")
            self.assertEqual(error["code"], "model_not_found")
            self.assertEqual(len(text(server.complete("a", model="plain", max_tokens=2, **GREEDY))), 2)

    def test_bodies_that_are_no_json(self):
        with Server("--body", "10k") as server:
            for body in b"", b"{", b"[1]", b"\xff\xfe", b'{"prompt": "a\x00"}', b'{"prompt": "\xff"}', b"[" * 5000:
                status, _, answer = server.request("POST", COMPLETIONS, body)
                self.assertEqual(status, 400, answer)
                self.assertEqual(json.loads(answer)["error"]["type"], "invalid_request_error")
            status, _, answer = server.request("POST", COMPLETIONS, json.dumps({"prompt": "x" * 11000}))
            self.assertEqual(status, 413, answer)
            status, _, answer = server.request("POST", COMPLETIONS, b"{}", {"Content-Type": "text/plain"})
            self.assertEqual(status, 415, answer)

    def test_paths_and_methods(self):
        with Server() as server:
            for method, path, code in [("GET", "/none", 404), ("GET", "/v1/none", 404), ("GET", "//", 404), ("GET", "/etc/passwd", 404),
                                       ("GET", COMPLETIONS, 405), ("DELETE", "/v1/models", 405),
                                       ("POST", "/health", 405), ("GET", "/v1/models/other", 404)]:
                status, headers, body = server.request(method, path)
                self.assertEqual(status, code, body)
                self.assertIn("message", json.loads(body)["error"])
                self.assertEqual("Allow" in headers, code == 405)

    def test_the_page_may_load_nothing_from_elsewhere(self):
        put("key", "sk-secret\n")
        with Server("--api-key-file", "key") as server:
            for path, kind in [("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css"),
                               ("/icon.svg", "image/svg+xml")]:
                status, headers, body = server.request("GET", path)
                self.assertEqual(status, 200, body)
                self.assertEqual(headers["Content-Type"].split(";")[0], kind)
                self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
                self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
                for address in re.findall("https?://[^\"' ]+", body):
                    self.assertEqual(address, "http://www.w3.org/2000/svg")  # a name, not a place

    def test_connections_that_are_no_http(self):
        with Server() as server:
            for data in b"\0" * 100, b"GET / HTTP/1.1\r\nX: " + b"y" * 100000, b"POST " + COMPLETIONS.encode() + \
                    b" HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{":
                with contextlib.closing(socket.create_connection(("127.0.0.1", server.port), LIMIT)) as connection:
                    with contextlib.suppress(OSError):
                        connection.sendall(data)
                        connection.shutdown(socket.SHUT_WR)
                        connection.recv(1000)
            self.assertEqual(json.loads(server.get("/health")), {"status": "ok"})

    def test_headers_that_never_end(self):
        """A byte now and then does not keep a connection, neither the first header nor a later one."""
        with Server("--timeout", "1") as server:
            for before in b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n":
                with contextlib.closing(socket.create_connection(("127.0.0.1", server.port), LIMIT)) as connection:
                    connection.sendall(before)
                    for i in range(5 * LIMIT):
                        try:
                            connection.sendall(b"x" if i else b"G")
                        except OSError:
                            break
                        time.sleep(0.2)
                    else:
                        self.fail("the connection is still there")
            with server.streaming(prompt=STORY, max_tokens=10**7, **GREEDY) as response:  # answers may take longer
                until = time.monotonic() + 2
                while time.monotonic() < until:
                    self.assertTrue(response.read(100))

    def test_bodies_of_many(self):
        """All bodies together have a limit, and those that were left make room."""
        def ask():
            body = json.dumps({"prompt": "x", "max_tokens": 1})  # long, and read in no time
            return server.request("POST", COMPLETIONS, body + " " * 9000)

        head = (f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                "Content-Length: 9999\r\n\r\n").encode()
        with Server("--body", "10000", "--timeout", "300") as server, contextlib.ExitStack() as stack:
            status, sent = 200, 0
            while status == 200 and sent < 50:  # eight fill it, unless a question was faster than one of them
                connection = socket.create_connection(("127.0.0.1", server.port), LIMIT)
                stack.enter_context(contextlib.closing(connection))
                connection.sendall(head + b" " * 9900)
                sent += 1
                status, headers, answer = ask()
            self.assertEqual(status, 429, answer)
            self.assertEqual(headers["Retry-After"], "1")
            self.assertGreaterEqual(sent, 8)
            self.assertEqual(server.request("GET", "/health")[0], 200)
            stack.close()
            for _ in range(20 * LIMIT):
                status = ask()[0]
                if status == 200:
                    break
                time.sleep(0.05)
            self.assertEqual(status, 200)

    def test_names_of_other_sites(self):
        """A page of another site whose name leads here is refused, unless a key protects the server."""
        put("key", "sk-secret\n")
        name = {"Host": "evil.example:80"}
        with Server() as server:
            status, _, body = server.request("GET", "/v1/models", headers=name)
            self.assertEqual(status, 403, body)
            self.assertIn("--api-key-file", json.loads(body)["error"]["message"])
            self.assertEqual(server.request("GET", "/v1/models", headers={"Host": "localhost:1"})[0], 200)
        with Server("--api-key-file", "key") as server:
            name["Authorization"] = "Bearer sk-secret"
            self.assertEqual(server.request("GET", "/v1/models", headers=name)[0], 200)

    def test_keys(self):
        put("key", "sk-secret\n")
        with Server("--api-key-file", "key") as server:
            for given, code in [(None, 401), ("Bearer sk-secre", 401), ("Bearer sk-secret1", 401), ("sk-secret", 401),
                                ("Bearer sk-secret", 200)]:
                status, _, body = server.request("GET", "/v1/models", headers={"Authorization": given} if given else {})
                self.assertEqual(status, code, body)
            self.assertEqual(json.loads(server.get("/health")), {"status": "ok"})
        self.wrong("no.key: |cannot open no.key", "--api-key-file", "no.key")
        put("key", "\n")
        self.wrong("key: the first line must be a key", "--api-key-file", "key")

    def wrong(self, pattern, *words):
        result = subprocess.run([PROGRAM, "serve", "--model", "plain.gguf", "--port", "0", *words], check=False,
                                capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, pattern)

    def test_places_that_cannot_be_listened_at(self):
        self.wrong("the host no.such.host.invalid is not known", "--host", "no.such.host.invalid")
        with Server() as server:
            result = subprocess.run([PROGRAM, "serve", "--model", "plain.gguf", "--port", str(server.port)],
                                    check=False, capture_output=True, text=True, timeout=LIMIT,
                                    stdin=subprocess.DEVNULL)
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, "cannot listen on 127.0.0.1, port")


class Life(Base):
    def test_what_it_says_of_itself(self):
        with Server("--name", "ferry", *WINDOW) as server:
            self.assertIn("serving ferry at", server.line)
            models = json.loads(server.get("/v1/models"))
            self.assertEqual([m["id"] for m in models["data"]], ["ferry"])
            self.assertEqual(json.loads(server.get("/v1/models/ferry"))["id"], "ferry")
            props = json.loads(server.get("/props"))
            self.assertEqual((props["total_slots"], props["window"], props["sinks"]), (4, 8, 2))
            self.assertIn("im_start", props["chat_template"])
            self.assertEqual(len(json.loads(server.get("/slots"))), 4)
            server.complete(STORY, max_tokens=5, **GREEDY)
            server.complete(STORY, max_tokens=5, **GREEDY)
            self.assertEqual([server.metric(name) for name in ("prompt_tokens_total", "cached_tokens_total",
                                                               "tokens_predicted_total")], [44, 21, 10])

    def test_ends_when_told_to(self):
        for number in signal.SIGTERM, signal.SIGINT:
            with Server() as server:
                server.complete(STORY, max_tokens=5)
                self.assertEqual(server.end(number), (0, ""))

    def test_answers_that_are_being_written_end_well(self):
        with Server() as server:
            with server.streaming(prompt=STORY, max_tokens=400, **GREEDY) as response:
                server.process.send_signal(signal.SIGTERM)
                body = "data:" + response.read().decode()
            self.assertEqual(server.process.wait(LIMIT), 0)
            self.assertTrue(body.endswith("data: [DONE]\n\n"), body[-200:])
            events = [json.loads(e[6:]) for e in body.split("\n\n")[:-2]]
            self.assertEqual("".join(e["choices"][0]["text"] for e in events),
                             out("--prompt", STORY, "--tokens", "400"))


class Client(Base):
    def test_the_openai_package(self):
        try:
            import openai
        except ImportError:
            self.skipTest("the package openai is not installed")
        with Server() as server:
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", timeout=LIMIT)
            self.assertEqual([m.id for m in client.models.list()], ["plain"])
            wanted = out("--prompt", STORY, "--tokens", "12")
            answer = client.completions.create(model="plain", prompt=STORY, max_tokens=12, temperature=0, logprobs=2)
            self.assertEqual(answer.choices[0].text, wanted)
            self.assertEqual(len(answer.choices[0].logprobs.token_logprobs), 12)
            stream = client.completions.create(model="plain", prompt=STORY, max_tokens=12, temperature=0, stream=True)
            self.assertEqual("".join(c.choices[0].text for c in stream), wanted)
            messages = [{"role": "user", "content": "Who?"}]
            whole = client.chat.completions.create(model="plain", messages=messages, max_tokens=12, temperature=0)
            stream = client.chat.completions.create(model="plain", messages=messages, max_tokens=12, temperature=0,
                                                    stream=True, stream_options={"include_usage": True})
            events = list(stream)
            self.assertEqual("".join(c.choices[0].delta.content or "" for c in events if c.choices),
                             whole.choices[0].message.content)
            self.assertEqual(events[-1].usage.completion_tokens, 12)
            self.assertGreater(events[-1].usage.prompt_tokens_details.cached_tokens, 0)
            with self.assertRaises(openai.NotFoundError):
                client.completions.create(model="other", prompt="a")
            with self.assertRaises(openai.BadRequestError):
                client.completions.create(model="plain", prompt="")


if __name__ == "__main__":
    features = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    if "microhttpd: yes" not in features:
        print("skipped: this build has no HTTP server", file=sys.stderr)
        sys.exit(77)
    main({"plain": {}, "ends": {"end_row": 2.0}, "nochat": {"template": None}, "thinks": {"template": THINKING}})
