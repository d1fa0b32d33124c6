#!/usr/bin/env python3
"""The server beside llama.cpp's, on the same file and threads, in turns; then a long conversation.

Clients: 1, 4 and 16 at once, each with a prompt of its own that the server has not seen, and a greedy answer that is
streamed. Reported are tokens per second of all clients together, the same per second of processor time of
the server (which a busy machine disturbs less), and the median time to the first text. Both servers run all the time,
and the rounds alternate; the best of the rounds counts. llama.cpp is measured where --llama names its llama-server,
with its global attention; ours with a window and with global attention.

Conversation: turns of so many tokens, and the time to the first text of the last turn, with all before it kept in
memory, kept on disk by a server that has ended, and read anew; with the window, or with an adapter and its own.

    python3 bench/compare_server.py SmolLM2-135M-Instruct.Q4_1.gguf --llama llama.cpp/build/bin/llama-server
"""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time

import common

PATH = "/v1/completions"
TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """A server that listens at a port."""

    def __init__(self, command, port):
        self.port = port
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        for _ in range(1200):
            if self.process.poll() is not None:
                common.die(f"{' '.join(command)} ended with {self.process.returncode}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                with contextlib.closing(connection):
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        return
            time.sleep(0.1)
        common.die(f"{' '.join(command)} does not answer")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)

    def seconds(self):
        """Processor time so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def ask(self, prompt, most):
        """Seconds to the first text of a streamed answer, the server's processor time until then, usage and text."""
        body = {"prompt": prompt, "max_tokens": most, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        began, used, first, work, usage, text = time.monotonic(), self.seconds(), None, None, None, ""
        with contextlib.closing(connection):
            connection.request("POST", PATH, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                common.die(response.read().decode())
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                here = "".join(choice["text"] for choice in event["choices"])
                if first is None and here:
                    first, work = time.monotonic() - began, self.seconds() - used
                text += here
                usage = event.get("usage") or usage
        return first, work, usage, text


def free_port():
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ours(arguments, *words):
    port = free_port()
    command = [*arguments.prefix.split(), arguments.program, "serve", "--model", arguments.model, "--port", str(port)]
    return Server([*command, "--threads", str(arguments.threads), *map(str, words)], port)


def theirs(arguments):
    port = free_port()
    each = arguments.prompt + arguments.tokens + 64
    most, threads = max(arguments.clients), str(arguments.threads)
    command = [*arguments.prefix.split(), arguments.llama, "-m", arguments.model, "--port", str(port)]
    return Server([*command, "-t", threads, "-tb", threads, "--parallel", str(most), "-c", str(2 * each * most)], port)


class Texts:
    """Pieces of a text, each used once."""

    def __init__(self, path):
        paths = [path] if path else sorted(pathlib.Path(__file__).resolve().parents[1].glob("docs/*.md"))
        self.words = " ".join(pathlib.Path(p).read_text(encoding="utf-8") for p in paths).split()
        self.at = 0

    def piece(self, words):
        """So many words, marked so that no two pieces begin alike."""
        self.at += words
        place = self.at % (len(self.words) - words)
        return f"{self.at}. " + " ".join(self.words[place : place + words])


def together(server, prompts, arguments):
    """A client for each prompt: tokens per second, per second of processor time, the median time to the first text."""
    clients = len(prompts)
    answers = [None] * clients

    def client(i):
        answers[i] = server.ask(prompts[i], arguments.tokens)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    began, used = time.monotonic(), server.seconds()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall, used = time.monotonic() - began, server.seconds() - used
    made = sum(usage["completion_tokens"] for _, _, usage, _ in answers)
    return {"rate": made / wall, "work": made / max(used, 1 / TICKS),
            "first": statistics.median(first for first, _, _, _ in answers),
            "prompt": statistics.mean(usage["prompt_tokens"] for _, _, usage, _ in answers)}


def best(rounds):
    return {"rate": max(r["rate"] for r in rounds), "work": max(r["work"] for r in rounds),
            "first": min(r["first"] for r in rounds), "prompt": statistics.mean(r["prompt"] for r in rounds)}


def compare_clients(arguments, report, texts):
    most, keep = max(arguments.clients), ["--keep", "0"]
    servers = {"window": ours(arguments, "--parallel", most, "--window", arguments.window, "--sinks", 4, *keep),
               "global": ours(arguments, "--parallel", most, *keep)}
    if arguments.llama:
        servers["llama.cpp"] = theirs(arguments)
    report.table([("clients", "clients", "d"), ("server", "server", ""), ("prompt", "prompt", ".0f"),
                  ("rate", "tokens/s", ".1f"), ("work", "per processor s", ".1f"), ("first", "first text s", ".2f"),
                  ("rate_ratio", "rate/llama", ".2f"), ("work_ratio", "work/llama", ".2f"),
                  ("first_ratio", "first/llama", ".2f")])
    for clients in arguments.clients:
        rounds = {name: [] for name in servers}
        for _ in range(arguments.rounds):
            # Somewhat more than a token to a word.
            prompts = [texts.piece(int(arguments.prompt * 0.6)) for _ in range(clients)]
            for name, server in servers.items():
                rounds[name].append(together(server, prompts, arguments))
        found = {name: best(each) for name, each in rounds.items()}
        for name, row in found.items():
            ratios = {f"{key}_ratio": row[key] / found["llama.cpp"][key] for key in ("rate", "work", "first")
                      if "llama.cpp" in found}
            report.add(clients=clients, server=name, **row, **ratios)
    for server in servers.values():
        server.end()


def converse(arguments, report, texts):
    """A conversation of ten turns; the last is asked for in three ways."""
    each = arguments.conversation / 10
    turns = [texts.piece(int(each * 0.6)) for _ in range(9)]
    last = int((arguments.last or each) * 0.6)
    report.table([("way", "the tenth turn", ""), ("prompt", "prompt", "d"), ("cached", "known", "d"),
                  ("first", "first text s", ".3f"), ("share", "of reading anew", ".4f"),
                  ("work", "processor s", ".2f"), ("work_share", "of reading anew", ".4f")])
    with tempfile.TemporaryDirectory() as folder:
        words = ["--window", arguments.window, "--sinks", 4]
        words = ["--adapter", arguments.adapter] if arguments.adapter else words
        keeping = [*words, "--sessions", folder]
        server, prompt = ours(arguments, *keeping), ""
        for turn in turns:
            prompt += turn + "\n"
            prompt += server.ask(prompt, 16)[3] + "\n"
        server.end()
        prompt += texts.piece(last) + "\n"
        found = {}
        server = ours(arguments, *keeping)
        found["from disk, after a restart"] = server.ask(prompt, 16)
        # The same once more, with another ending: what is before it is in memory.
        found["kept in memory"] = server.ask(prompt + texts.piece(last), 16)
        server.end()
        server = ours(arguments, *words)
        found["read anew"] = server.ask(prompt, 16)
        server.end()
    whole, all_work = found["read anew"][:2]
    assert found["from disk, after a restart"][3] == found["read anew"][3], "the answers differ"
    for way, (first, work, usage, _) in found.items():
        report.add(way=way, prompt=usage["prompt_tokens"], cached=usage["prompt_tokens_details"]["cached_tokens"],
                   first=first, share=first / whole, work=work, work_share=work / all_work)


def options():
    parser = common.parser(__doc__.partition("\n\n")[0])
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--llama", metavar="PATH", help="llama.cpp's llama-server")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefix", default="", help="words before a server's command, as 'taskset -c 1'")
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt, about")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--conversation", type=int, default=20000, help="its tokens, about; 0: none")
    parser.add_argument("--last", type=int, help="of its last turn (default: as many as of the others)")
    parser.add_argument("--adapter", metavar="DIR", help="for the conversation")
    parser.add_argument("--text", metavar="FILE", help="the text of the prompts (default: the documents here)")
    return parser.parse_args()


def main():
    arguments = options()
    version = common.call(arguments.program, "--version").split("\n")[0]
    if arguments.llama:
        said = subprocess.run([arguments.llama, "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"version: .*", said.stdout + said.stderr)
        version += ", llama-server " + (found[0] if found else "of unknown version")
    report = common.Report("server", arguments, version)
    texts = Texts(arguments.text)
    if arguments.clients:
        compare_clients(arguments, report, texts)
    if arguments.conversation:
        converse(arguments, report, texts)
    report.end()


if __name__ == "__main__":
    main()
