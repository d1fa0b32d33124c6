"""A rosatune serve that runs, what its answers say, and clients of it. For tests."""
import contextlib
import http.client
import json
import re
import signal
import subprocess
import threading
import time

from tiny_model import LIMIT, PROGRAM, receptive

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GREEDY = {"temperature": 0}
STORY = "A story of a ferryman."


class Server:
    """A running server, on a port of its own."""

    def __init__(self, *words, model="plain.gguf"):
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--model", model, "--port", "0", "--threads", "1", *words], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=receptive)
        self.line = self.process.stdout.readline()
        found = re.search(r"at http://127\.0\.0\.1:(\d+)/v1", self.line)
        if not found:
            raise AssertionError(self.line + self.process.communicate(timeout=LIMIT)[1])
        self.port = int(found[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.end(signal.SIGTERM)
        self.process.stdout.close()
        self.process.stderr.close()

    def end(self, number):
        """Ends it, and returns the exit code and what it said."""
        self.process.send_signal(number)
        try:
            said = self.process.communicate(timeout=LIMIT)[1]
        finally:
            self.process.kill()
        return self.process.returncode, said

    def request(self, method, path, body=None, headers=None):
        """The status, the headers and the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json"} | (headers or {}))
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()

    def get(self, path):
        status, _, body = self.request("GET", path)
        assert status == 200, body
        return body

    def post(self, path, code=200, **fields):
        status, _, body = self.request("POST", path, json.dumps(fields))
        assert status == code, f"{status}, not {code}: {body}"
        return json.loads(body)

    def complete(self, prompt, **fields):
        return self.post(COMPLETIONS, prompt=prompt, **fields)

    def chat(self, *messages, **fields):
        said = [dict(role=role, content=content) for role, content in messages]
        return self.post(CHAT, messages=said, **fields)

    def stream(self, path, **fields):
        """The events of a stream; the last must be [DONE]."""
        status, headers, body = self.request("POST", path, json.dumps(fields | {"stream": True}))
        assert status == 200 and headers["Content-Type"] == "text/event-stream", body
        events = body.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""] and all(e.startswith("data: ") for e in events[:-1]), body
        return [json.loads(event[6:]) for event in events[:-2]]

    @contextlib.contextmanager
    def asking(self, **fields):
        """A completion that is asked for, and left in the end: the connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        with contextlib.closing(connection):
            connection.request("POST", COMPLETIONS, json.dumps(fields), {"Content-Type": "application/json"})
            yield connection

    @contextlib.contextmanager
    def streaming(self, **fields):
        """A stream of a completion that has begun and is left in the end: the connection's response."""
        with self.asking(stream=True, **fields) as connection:
            with contextlib.closing(connection.getresponse()) as response:  # it holds the connection too
                assert response.read(5) == b"data:"
                yield response

    def metric(self, name):
        return float(re.search(rf"^rosatune:{name} (\S+)$", self.get("/metrics"), re.M)[1])

    def until(self, name, value):
        """Waits until a metric has a value."""
        for _ in range(20 * LIMIT):
            if self.metric(name) == value:
                return
            time.sleep(0.05)
        raise AssertionError(f"{name} is {self.metric(name)}, not {value}")


def text(answer, choice=0):
    return answer["choices"][choice]["text"]


def said(answer):
    return answer["choices"][0]["message"]["content"]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def resident(server, what="VmRSS"):
    """Bytes of a server in memory; of VmHWM, the most so far."""
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
        return 1024 * int(re.search(rf"^{what}:\s+(\d+) kB", file.read(), re.M)[1])


def clients(count, visit):
    """Calls visit(number) in so many threads at once, and fails with whatever any of them raised."""
    problems = []

    def run(number):
        try:
            visit(number)
        except Exception as problem:  # whatever it is, the test must hear of it
            problems.append(repr(problem))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems
