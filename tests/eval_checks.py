"""rosatune eval, score and report on a tiny model, from outside. The first argument is the program.

Scores are compared with plain Python, and where they are installed with the scorer of RULER (nvidia-long-context-eval)
and with rouge-score, which wrote the definitions.
"""
import collections
import gzip
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import string
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from tiny_model import (
    PROGRAM, WINDOW, Base, generate, losses, main, put, receptive, run, write_adapter, write_pointer,
)


def write_lines(path, lines):
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with (gzip.open if path.endswith(".gz") else open)(path, "wb") as file:
        file.write(data)


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def evaluate(*words, model="plain.gguf", **more):
    return run("eval", "--model", model, *words, **more)


def means(*words, **more):
    return json.loads(evaluate("--json", *words, **more).stdout)


# --------------------------------------------------------------------------------------------------------- definitions


def normalised(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def ratio(common, answered, expected):
    return 2 * common / (answered + expected) if common else 0.0


def f1(answer, expected):
    one, other = normalised(answer), normalised(expected)
    common = sum((collections.Counter(one) & collections.Counter(other)).values())
    return ratio(common, len(one), len(other))


def common_sequence(one, other):
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, a in enumerate(one):
        for k, b in enumerate(other):
            table[i + 1][k + 1] = table[i][k] + 1 if a == b else max(table[i][k + 1], table[i + 1][k])
    return table[-1][-1]


def rouge_l(answer, expected):
    one, other = (re.findall("[a-z0-9]+", text.lower()) for text in (answer, expected))
    return ratio(common_sequence(one, other), len(one), len(other))


def code(answer, expected):
    lines = [line for line in answer.lstrip("\n").split("\n") if not re.search("[`#]|//", line)]
    line = next((line for line in lines if line), "")
    return ratio(common_sequence(line, expected), len(line), len(expected))


def named_class(answer, expected, classes):
    named = [each for each in classes if each in answer and (each == expected or each not in expected)]
    return 1 / len(named) if expected in named else 0.0


def matches(answer, expected):
    answer = re.sub(r"[\x00-\x1f]", "\n", answer.strip()).strip()
    return [float(each.lower() in answer.lower()) for each in expected]


ORACLES = {
    "match-all": lambda answer, expected: statistics.fmean(matches(answer, expected)),
    "match-part": lambda answer, expected: max(matches(answer, expected)),
    "exact": lambda answer, expected: float(any(normalised(answer) == normalised(each) for each in expected)),
    "f1": lambda answer, expected: max(f1(answer, each) for each in expected),
    "rouge-l": lambda answer, expected: max(rouge_l(answer, each) for each in expected),
    "code": lambda answer, expected: max(code(answer, each) for each in expected),
}


class Score(Base):
    """Scores of answers, by the definitions."""

    WORDS = ["the", "a", "an", "The", "river", "River,", "bell", "ferry-man", "7", "42", "don't", "U.S.", "theory",
             "\u201cthe\u201d", "na\u00efve", "\u00c9COLE", "\u00e9cole", "\u0130stanbul", "\u212aelvin", "caf\u00e9_s",
             "\u4e2d\u6587", "the\u2014end", "\u03a9mega", "\u01c5", "x\u00b2", "_a_", "...", "e\u0301", "\u00df\u1e9e"]
    SPACES = [" ", "  ", "\n", "\t", "\u00a0", "\u2003", "\u3000", " \x1c", "\x0b", "\u200b"]

    def text(self, rng):
        words = rng.choices(self.WORDS, k=rng.randrange(9))
        return rng.choice(["", " "]) + "".join(word + rng.choice(self.SPACES) for word in words)

    def lines(self, seed):
        rng = random.Random(seed)
        for _ in range(400):
            answer = self.text(rng)
            expected = [self.text(rng) for _ in range(rng.randrange(1, 4))]
            if rng.random() < 0.4:
                expected[-1] = rng.choice([answer.strip().upper(), answer[1:9], " ".join(reversed(answer.split()))])
            yield answer, expected

    def scores(self, metric, lines, names=("pred", "outputs")):
        write_lines("a.jsonl", [{names[0]: answer, names[1]: expected} for answer, expected in lines])
        result = json.loads(run("score", "--metric", metric, "a.jsonl", "--json").stdout)["files"]["a.jsonl"]
        self.assertAlmostEqual(result["score"], statistics.fmean(result["scores"]), places=12)
        self.assertAlmostEqual(result["error"], statistics.stdev(result["scores"]) / math.sqrt(len(lines)), places=12)
        return result["scores"]

    def compare(self, metric, oracle, seed):
        lines = [*self.lines(seed)]
        expected = [oracle(answer, each) for answer, each in lines]
        for line, mine, theirs in zip(lines, self.scores(metric, lines), expected):
            self.assertAlmostEqual(mine, theirs, places=12, msg=f"{metric}: {line}")
        self.assertGreater(sum(0 < score for score in expected), 40)
        self.assertGreater(sum(score < 1 for score in expected), 40)

    def test_definitions(self):
        for seed, (metric, oracle) in enumerate(ORACLES.items()):
            self.compare(metric, oracle, seed)

    def test_classes(self):
        """The right class among all that an answer names, as LongBench scores TREC."""
        classes = ["Date", "Update", "Person", "Other person", "City"]
        rng = random.Random(5)
        lines = []
        for _ in range(300):
            named = rng.choices([*classes, "?"], k=rng.randrange(4))
            answer = rng.choice([" ", "\n\n"]) + rng.choice([", ", "\n"]).join(named)
            lines.append({"pred": answer, "answers": rng.sample(classes, rng.randrange(1, 3)), "all_classes": classes})
        write_lines("a.jsonl", lines)
        ways = [([], lambda text: text), (["--first-line"], lambda text: text.lstrip("\n").split("\n")[0])]
        for options, cut in ways:
            said = run("score", "--metric", "class", *options, "a.jsonl", "--json").stdout
            mine = json.loads(said)["files"]["a.jsonl"]["scores"]
            for line, score in zip(lines, mine, strict=True):
                each = [named_class(cut(line["pred"]), right, classes) for right in line["answers"]]
                self.assertAlmostEqual(score, max(each), places=12, msg=line)
            self.assertGreater(len({*mine}), 2)
        write_lines("a.jsonl", [{"pred": "Date", "answers": ["Date"]}])
        self.assertIn(b"a.jsonl:1: has no list of strings all_classes",
                      run("score", "--metric", "class", "a.jsonl", code=1).stderr)

    def test_code_lines(self):
        lines = [("\n\n# a remark\n```c\nint n = f(x); \nmore", ["int n = g(x);"]), ("// all\n# remarks", ["x"]),
                 ("caf\u00e9 = \u4e2d", ["cafe\u0301 = \u4e2d\u6587"]), ("", ["x"]), ("x = 1\ny", ["x = 1", "y"])]
        for mine, (answer, expected) in zip(self.scores("code", lines), lines, strict=True):
            self.assertAlmostEqual(mine, ORACLES["code"](answer, expected), places=12)

    def test_fields(self):
        lines = [("the bell", ["Bell"]), ("a ferry", ["bell"])]
        for names in ("pred", "answers"), ("answer", "expected"):
            self.assertEqual(self.scores("f1", lines, names), [1, 0])
        self.assertEqual(run("score", "--metric", "f1", "a.jsonl").stdout, b"a.jsonl: f1 50.0 +- 50.0, 2 answers\n")

    def test_against_ruler(self):
        try:
            from long_context_eval.eval.synthetic import constants
        except ImportError:
            self.skipTest("nvidia-long-context-eval is not installed")
        def clean(answer):  # what its evaluate.py does before
            return re.sub(r"[\x00-\x1f]", "\n", answer.strip()).strip()
        self.compare("match-all", lambda a, e: constants.string_match_all_per_sample([clean(a)], [e])[0] / 100, 11)
        self.compare("match-part", lambda a, e: constants.string_match_part_per_sample([clean(a)], [e])[0] / 100, 12)

    def test_against_rouge_score(self):
        try:
            from rouge_score import rouge_scorer
        except ImportError:
            self.skipTest("rouge-score is not installed")
        scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=False)
        self.compare("rouge-l", lambda a, e: max(scorer.score(each, a)["rougeL"].fmeasure for each in e), 13)

    def test_against_rapidfuzz(self):
        try:
            from rapidfuzz import fuzz
        except ImportError:
            self.skipTest("rapidfuzz is not installed")
        rng = random.Random(14)
        lines = [(self.text(rng).replace("\n", " ") + "x", [self.text(rng) + "y"]) for _ in range(200)]
        for mine, (answer, (expected,)) in zip(self.scores("code", lines), lines, strict=True):
            self.assertAlmostEqual(mine, fuzz.ratio(answer, expected) / 100, places=9)

    def test_refusals(self):
        for line, said in [('{"pred": "a"}', "a.jsonl:2: has no list of strings outputs"),
                           ('{"outputs": ["a"]}', "a.jsonl:2: has neither of the fields pred and answer"),
                           ('{"pred": 7, "outputs": ["a"]}', "a.jsonl:2: pred:"),
                           ('{"pred": "a", "outputs": ["a", 7]}', "a.jsonl:2: outputs"),
                           ("{", "a.jsonl:2:")]:
            put("a.jsonl", '{"pred": "a", "outputs": ["a"]}\n' + line + "\n")
            self.assertIn(said, run("score", "--metric", "f1", "a.jsonl", code=1).stderr.decode())
        self.assertIn(b"is for choices", run("score", "--metric", "word", "a.jsonl", code=1).stderr)


CHOICES = [
    ("the old ferryman sang of the old river and of the old", [" bell", " river. the old river", " ferry"], 1),
    ("a bell rang ", ["twice", "for the ferry"], 0),
    ("water, and the bell, and water, and the", [" bell", " b", " herring and the bell", " water"], 0),
    ("who sang of the river?", [" nobody sang of the river", " the ferryman"], 1),
]


def write_choices(path, task=None):
    extra = {"task_name": task} if task else {}
    write_lines(path, [{"context": context, "continuations": each, "gold": gold} | extra
                       for context, each, gold in CHOICES])


class Choices(Base):
    """Choices against the losses of every token."""

    def sums(self, context, continuation, *options, pointer=None):
        whole, alone = (context + continuation).encode(), context.rstrip().encode()
        return -math.fsum(losses([*whole], *options, pointer=pointer)[len(alone) - 1:])

    def check(self, records, *options, pointer=None):
        self.assertEqual([record["example"] for record in records], [*range(len(CHOICES))])
        for record, (context, continuations, gold) in zip(records, CHOICES):
            sums = [self.sums(context, each, *options, pointer=pointer) for each in continuations]
            normed = [total / len(each.removeprefix(" ").encode()) for total, each in zip(sums, continuations)]
            for mine, total in zip(record["logarithms"], sums, strict=True):
                self.assertAlmostEqual(mine, total, places=3)
            self.assertEqual(record["score"], sums.index(max(sums)) == gold)
            self.assertEqual(record["normed"], normed.index(max(normed)) == gold)
            self.assertAlmostEqual(record["loss"], -sums[gold], places=3)

    def test_conditions(self):
        write_choices("pick.jsonl")
        write_adapter("adapter")
        write_pointer("adapter/pointer.json", delay=8)
        options = [*WINDOW, "--adapter", "adapter", "pick.jsonl"]
        result = means(*options, "--out", "r.jsonl")
        conditions = result["tasks"]["pick"]["conditions"]
        self.assertEqual([*conditions], ["global", "window", "adapter", "off", "random", "pointer", "adapter+pointer"])
        records = collections.defaultdict(list)
        for line in read_lines("r.jsonl")[1:]:
            records[line["condition"]].append(line)
        adapter = ["--adapter", "adapter", *WINDOW]
        self.check(records["global"])
        self.check(records["window"], *WINDOW)
        self.check(records["pointer"], *WINDOW, pointer=8)
        self.check(records["adapter"], *adapter)
        self.check(records["adapter+pointer"], *adapter, pointer=8)
        texts = {name: [record["logarithms"] for record in each] for name, each in records.items()}
        self.assertEqual(texts["off"], texts["window"])
        self.assertEqual(len({json.dumps(text) for text in texts.values()}), 6)
        for name, each in records.items():
            scores = [record["score"] for record in each]
            self.assertAlmostEqual(conditions[name]["score"], statistics.fmean(scores), places=12)
            self.assertAlmostEqual(conditions[name]["error"], statistics.stdev(scores) / 2, places=12)
        # some of them alone, and with other numbers of threads
        some = means(*options, "--conditions", "adapter+pointer,global", "--threads", "3")["tasks"]["pick"]
        self.assertEqual(some["conditions"], {name: conditions[name] for name in ("global", "adapter+pointer")})
        table = evaluate(*options, "--conditions", "global").stdout.decode()
        self.assertIn(f"{100 * conditions['global']['score']:.1f} +- {100 * conditions['global']['error']:.1f}", table)

    def test_requests(self):
        """A line per continuation, contexts that differ, and continuations without context, which are left out."""
        lines = []
        for document, (context, continuations, gold) in enumerate(CHOICES):
            for i, each in enumerate(continuations):
                request = {"context": context, "continuation": each}
                lines.append({"request": request, "idx": i, "doc_id": document, "task_name": "asked", "label": gold})
        other = [{**line, "doc_id": line["doc_id"] + 1000000} for line in lines]
        write_lines("requests.jsonl.gz", [*lines, *other])
        write_choices("pick.jsonl", task="asked")
        self.assertEqual(means("requests.jsonl.gz")["tasks"], means("pick.jsonl")["tasks"])
        some = means("requests.jsonl.gz", "--limit", "2")["tasks"]["asked"]
        self.assertEqual(some["conditions"]["global"]["examples"], 2)
        lines = [{"request": {"context": f"the {name} sang of", "continuation": " the river"}, "doc_id": 0, "label": 1}
                 for name in ("bell", "ferryman")]
        write_lines("two.jsonl", lines)
        means("two.jsonl", "--out", "r.jsonl")
        expected = [self.sums(line["request"]["context"], " the river") for line in lines]
        for mine, total in zip(read_lines("r.jsonl")[1]["logarithms"], expected, strict=True):
            self.assertAlmostEqual(mine, total, places=3)

    def test_last_word(self):
        """Whether every token is the likeliest, and the perplexity of the word."""
        write_pointer("p.json", delay=8)
        contexts = ["the old river and the old bell and the old", "sang of the ferry, sang of the", "who? who"]
        lines = []
        for context in contexts:
            for options in [], [*WINDOW], [*WINDOW, "--pointer", "p.json"]:
                written = generate("--prompt", context, "--tokens", "3", *options).stdout.decode()
                lines.append({"context": context, "continuations": [written]})
        lines.append({"context": contexts[0], "continuations": [" zq"]})
        write_lines("last.jsonl", lines)
        result = means(*WINDOW, "--pointer", "p.json", "last.jsonl", "--out", "r.jsonl")["tasks"]["last"]
        self.assertEqual(result["metric"], "word")
        for place, (name, options, pointer) in enumerate([("global", [], None), ("window", WINDOW, None),
                                                          ("pointer", WINDOW, 8)]):
            records = [line for line in read_lines("r.jsonl")[1:] if line["condition"] == name]
            self.assertEqual([record["score"] for record in records][place:-1:3], [1, 1, 1], name)
            self.assertEqual(records[-1]["score"], 0)
            sums = [self.sums(line["context"], line["continuations"][0], *options, pointer=pointer) for line in lines]
            mine = result["conditions"][name]["perplexity"]
            self.assertAlmostEqual(math.log(mine), -statistics.fmean(sums), places=4)


PROMPTS = ["the number of the bell is 417. the river. the number of the bell is", "the old ferry", "water and water"]


def write_needles(path, **more):
    write_lines(path, [{"index": i, "input": prompt, "outputs": ["417", "e"], "length": 1000 + 1000 * i} | more
                       for i, prompt in enumerate(PROMPTS)])


class Answers(Base):
    """Answers as generate writes them, greedily."""

    def test_needles(self):
        os.makedirs("niah_single_1")
        write_needles("niah_single_1/validation.jsonl")
        write_pointer("p.json", delay=8)
        options = [*WINDOW, "--pointer", "p.json", "--tokens", "20"]
        result = means(*options, "niah_single_1/validation.jsonl", "--out", "r.jsonl")["tasks"]["niah_single_1"]
        self.assertEqual((result["metric"], [*result["conditions"]]), ("match-all", ["global", "window", "pointer"]))
        records = read_lines("r.jsonl")[1:]
        self.assertEqual(len(records), 9)
        ways = {"global": [], "window": WINDOW, "pointer": [*WINDOW, "--pointer", "p.json"]}
        for record in records:
            prompt = PROMPTS[record["example"]]
            written = generate("--prompt", prompt, "--tokens", "20", *ways[record["condition"]]).stdout.decode()
            self.assertEqual(record["answer"], written)
            self.assertEqual(record["score"], ORACLES["match-all"](written, ["417", "e"]))
            self.assertEqual(record["length"], 1000 + 1000 * record["example"])
            if record["example"]:
                self.assertNotIn("depth", record)
            else:
                self.assertAlmostEqual(record["depth"], prompt.index("417") / len(prompt))
        self.assertGreater(len({record["answer"] for record in records}), 6)
        lengths = result["conditions"]["window"]["lengths"]
        self.assertEqual({name: each["examples"] for name, each in lengths.items()}, {"1024": 1, "2048": 1, "4096": 1})
        self.assertEqual([*lengths["1024"]["depths"]], ["30"])

    def test_stops_prefixes_and_templates(self):
        write_needles("vt.jsonl", answer_prefix=" is it")
        plain = generate("--prompt", PROMPTS[0] + " is it", "--tokens", "30").stdout.decode()
        stop = plain[4:6]
        evaluate("vt.jsonl", "--stop", stop, "--out", "r.jsonl")
        self.assertEqual(read_lines("r.jsonl")[1]["answer"], plain[:plain.index(stop)])
        write_lines("x.jsonl", [{"input": "who?", "context": "the {input}", "answers": ["e"], "dataset": "qasper_e"}])
        evaluate("x.jsonl", "--out", "s.jsonl", "--tokens", "9")
        record = read_lines("s.jsonl")[1]
        self.assertEqual((record["task"], record["metric"]), ("qasper_e", "f1"))
        prompt = "the {input}\n\nQuestion: who?\nAnswer:"
        self.assertEqual(record["answer"], generate("--prompt", prompt, "--tokens", "9").stdout.decode())
        put("p.json", json.dumps({"qasper_e": "{{input}}: {context}{"}))
        evaluate("x.jsonl", "--out", "t.jsonl", "--tokens", "9", "--prompts", "p.json", "--metric", "exact")
        record = read_lines("t.jsonl")[1]
        self.assertEqual(record["metric"], "exact")
        self.assertEqual(record["answer"],
                         generate("--prompt", "{who?}: the {input}{", "--tokens", "9").stdout.decode())

    def test_longbench(self):
        """The paper's five tasks, one file each, with LongBench's fields, in a run over all files of a folder."""
        os.makedirs("data")
        context = "the old river and the bell. " * 3
        tasks = {"samsum": ("rouge-l", "Dialogue: who sang?", True), "triviaqa": ("f1", "who sang?", True),
                 "multi_news": ("rouge-l", "", False), "gov_report": ("rouge-l", "", False),
                 "trec": ("class", "Type:", True)}
        for name, (_, question, _) in tasks.items():
            write_lines(f"data/{name}.jsonl", [
                {"input": question, "context": context, "answers": ["the bell", "e"], "length": 20, "dataset": name,
                 "language": "en", "all_classes": ["e", "the bell", "x"] if name == "trec" else None, "_id": "0"}])
        files = sorted(f"data/{name}" for name in os.listdir("data"))
        result = means(*files, "--tokens", "12", "--out", "r.jsonl")["tasks"]
        self.assertEqual({name: each["metric"] for name, each in result.items()},
                         {name: metric for name, (metric, _, _) in tasks.items()})
        for record in read_lines("r.jsonl")[1:]:
            metric, question, shots = tasks[record["task"]]
            prompt = f"{context}\n{question}" if shots else f"{context}\n\nSummary:"
            written = generate("--prompt", prompt, "--tokens", "12").stdout.decode()
            self.assertEqual(record["answer"], written)
            written = written.lstrip("\n").split("\n")[0] if shots else written
            expected = ["the bell", "e"]
            score = (max(named_class(written, each, ["e", "the bell", "x"]) for each in expected)
                     if metric == "class" else ORACLES[metric](written, expected))
            self.assertAlmostEqual(record["score"], score, places=12)
        # prompts that are too long lose their middle
        evaluate("data/gov_report.jsonl", "--tokens", "12", "--prompt-tokens", "21", "--out", "s.jsonl")
        prompt = f"{context}\n\nSummary:"
        self.assertEqual(read_lines("s.jsonl")[1]["answer"],
                         generate("--prompt", prompt[:10] + prompt[-10:], "--tokens", "12").stdout.decode())
        write_lines("trec.jsonl", [{"input": "a", "context": "b", "answers": ["c"]}])
        self.assertIn("trec.jsonl: example 0 has no all_classes", evaluate("trec.jsonl", code=1).stderr.decode())


class Elsewhere(Base):
    """Prompts for a model elsewhere, and its answers."""

    def prepared(self):
        write_choices("pick.jsonl")
        write_needles("vt.jsonl")
        write_lines("word.jsonl", [{"context": "the old river", "continuations": [" bell"]}])
        evaluate("--prepare", "p.jsonl", "pick.jsonl", "vt.jsonl", "word.jsonl", "--tokens", "9")
        head, *lines = read_lines("p.jsonl")
        return head["prompts"], lines

    def answered(self, lines, condition="tuned (2 k)", **changes):
        """What a model that writes one text, and prefers later continuations, makes of prompts."""
        for line in lines:
            found = {"ids": [*b"e 417"]} if "ids" in line else {"logarithms": [-7 + i for i in range(len(line["first"]))],
                                                                "written": True}
            yield {name: line[name] for name in ("task", "example", "sum")} | {"condition": condition} | found | changes

    def test_prompts(self):
        head, lines = self.prepared()
        self.assertEqual((head["vocabulary"], head["ends"]), (261, [258]))
        self.assertEqual(head["pieces"], [*map(chr, range(256)), "", "", "", "<think>", "</think>"])
        self.assertEqual([line["task"] for line in lines], ["pick"] * 4 + ["vt"] * 3 + ["word"])
        for line, (context, continuations, _) in zip(lines, CHOICES):
            self.assertEqual(line["texts"], [[*(context + each).encode()] for each in continuations])
            self.assertEqual(line["first"], [len(context.rstrip())] * len(continuations))
        for line, prompt in zip(lines[4:], PROMPTS):
            self.assertEqual((line["ids"], line["tokens"], line["metric"]), ([*prompt.encode()], 9, "match-all"))
            self.assertEqual(line["expected"], ["417", "e"])
        evaluate("vt.jsonl", "--out", "r.jsonl")
        for line, record in zip(lines[4:7], read_lines("r.jsonl")[1:], strict=True):
            self.assertEqual((line["sum"], line["length"]), (record["sum"], record["length"]))
        evaluate("--prepare", "p.jsonl", "vt.jsonl", "--prompt-tokens", "20")
        for line, prompt in zip(read_lines("p.jsonl")[1:], PROMPTS):
            self.assertEqual(line["ids"], [*(prompt if len(prompt) <= 20 else prompt[:10] + prompt[-10:]).encode()])

    def test_answers(self):
        _, lines = self.prepared()
        settings = {"settings": {"model": "elsewhere", "window": 8, "sinks": 2}}
        write_lines("a.jsonl", [settings, *self.answered(lines), *self.answered(lines[:6], "window")])
        words = ["--answers", "a.jsonl", "--out", "r.jsonl", "pick.jsonl", "vt.jsonl", "word.jsonl"]
        result = means(*words)
        self.assertEqual(result["settings"], settings["settings"])
        self.assertEqual([*result["tasks"]["vt"]["conditions"]], ["window", "tuned (2 k)"])  # ours first
        for record in read_lines("r.jsonl")[1:]:
            if record["task"] == "vt":
                self.assertEqual((record["answer"], record["score"]), ("e 417", 1))
            elif record["task"] == "pick":
                _, continuations, gold = CHOICES[record["example"]]
                self.assertEqual(record["score"], gold == len(continuations) - 1)
                each = [total / len(text.removeprefix(" ")) for total, text in zip(record["logarithms"], continuations)]
                self.assertEqual(record["normed"], gold == each.index(max(each)))
            else:
                self.assertEqual((record["score"], record["loss"]), (1, 7))
        with open("r.jsonl", "rb") as file:
            before = file.read()
        self.assertEqual(means(*words), result)
        with open("r.jsonl", "rb") as file:
            self.assertEqual(file.read(), before)
        self.assertIn("| window | tuned (2 k) |", run("report", "r.jsonl").stdout.decode())
        write_lines("a.jsonl", [settings, *self.answered(lines[4:], condition="b")])
        evaluate("--answers", "a.jsonl", "vt.jsonl", "--stop", "41", "--out", "s.jsonl")
        self.assertEqual([record["answer"] for record in read_lines("s.jsonl")[1:]], ["e "] * 3)
        # As where the model runs here: the text that is complete first counts, not the one that begins first.
        evaluate("--answers", "a.jsonl", "vt.jsonl", "--stop", " 417", "--stop", "41", "--out", "both.jsonl")
        self.assertEqual([record["answer"] for record in read_lines("both.jsonl")[1:]], ["e "] * 3)

    def test_refusals(self):
        _, lines = self.prepared()
        settings = {"settings": {"model": "elsewhere", "window": 8, "sinks": 2}}
        files = ["pick.jsonl", "vt.jsonl", "word.jsonl"]
        for changes, said in [({"sum": "0" * 16}, "sum: is that of another example than 0 of pick here"),
                              ({"example": 4}, "example: is 4; pick has 4 examples"),
                              ({"condition": ""}, "condition: is no name of a condition"),
                              ({"condition": "x" * 41}, "condition: is no name of a condition"),
                              ({"logarithms": [0, 0]}, "logarithms: are 2; the example has 3 continuations"),
                              ({"logarithms": [1, 0, 0]}, "is 1; it must be at most 0"),
                              ({"logarithms": None}, "logarithms")]:
            write_lines("a.jsonl", [settings, *self.answered(lines[:1], **changes)])
            self.assertIn(said, evaluate("--answers", "a.jsonl", *files, code=1).stderr.decode())
        write_lines("a.jsonl", [settings, *self.answered(lines[4:5], ids=[300])])
        self.assertIn("is 300; the vocabulary has 261 tokens",
                      evaluate("--answers", "a.jsonl", *files, code=1).stderr.decode())
        write_lines("a.jsonl", [*self.answered(lines)])
        self.assertIn("a.jsonl:1: has no settings", evaluate("--answers", "a.jsonl", *files, code=1).stderr.decode())
        write_lines("a.jsonl", [settings, *self.answered(lines)])
        evaluate("--answers", "a.jsonl", *files, "--out", "r.jsonl")
        write_lines("a.jsonl", [{"settings": {"model": "other"}}, *self.answered(lines)])
        self.assertIn("was written with other settings",
                      evaluate("--answers", "a.jsonl", *files, "--out", "r.jsonl", code=1).stderr.decode())
        for words, said in [(["--conditions", "global"], "--conditions: with --prepare and --answers"),
                            (["--prepare", "p.jsonl"], "--prepare: writes prompts and scores nothing")]:
            self.assertIn(said, evaluate("--answers", "a.jsonl", *words, *files, code=1).stderr.decode())


class Resuming(Base):
    def test_goes_on(self):
        """A file that ends anywhere is completed; one that is complete is not read again."""
        write_choices("pick.jsonl")
        write_needles("vt.jsonl")
        words = [*WINDOW, "pick.jsonl", "vt.jsonl", "--out", "r.jsonl"]
        whole = means(*words)
        with open("r.jsonl", "rb") as file:
            data = file.read()
        lines = data.splitlines(keepends=True)
        for kept in [0, 1, 5, len(lines) - 1, len(lines)]:
            put("r.jsonl", b"".join(lines[:kept]) + b"".join(lines[kept:kept + 1])[:20])
            self.assertEqual(means(*words), whole)
            with open("r.jsonl", "rb") as file:
                self.assertEqual(file.read(), data)
        # what was made with other settings or from another text is not mixed in
        said = evaluate("--window", "9", "pick.jsonl", "--out", "r.jsonl", code=1).stderr.decode()
        self.assertIn("--out r.jsonl: was written with other settings", said)
        write_lines("pick.jsonl", [{"context": "a", "continuations": ["b", "c"], "gold": 1}])
        self.assertIn("example 0 of pick was another one", evaluate(*words, code=1).stderr.decode())

    def test_interrupt(self):
        write_lines("many.jsonl", [{"context": "the old river " * 9, "continuations": [" a", " b"], "gold": i % 2}
                                   for i in range(4000)])
        words = [PROGRAM, "eval", "--model", "plain.gguf", "many.jsonl", "--out", "r.jsonl"]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, preexec_fn=receptive)
        while not os.path.exists("r.jsonl") or os.path.getsize("r.jsonl") < 2000:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1].decode()
        self.assertEqual(process.returncode, 130)
        kept = len(read_lines("r.jsonl")) - 1
        self.assertIn(f"{kept} results are in r.jsonl; the same command goes on", said)
        self.assertGreater(kept, 5)
        self.assertLess(kept, 4000)


class Report(Base):
    def test_markdown(self):
        write_choices("pick.jsonl")
        write_needles("niah.jsonl")
        whole = means(*WINDOW, "pick.jsonl", "niah.jsonl", "--tokens", "9", "--out", "r.jsonl")["tasks"]
        said = run("report", "r.jsonl", "r.jsonl").stdout.decode()
        first, second = said[:len(said) // 2], said[len(said) // 2 + 1:]
        self.assertEqual(first, second)
        lines = first.splitlines()
        self.assertEqual(lines[0], "plain.gguf, window 8, sinks 2 (r.jsonl):")
        self.assertEqual(lines[2:4], ["| task | examples | global | window |", "|---|---|---|---|"])
        for line, task, mean in (lines[4], "pick", "score"), (lines[5], "pick", "normed"), (lines[6], "niah", "score"):
            cells = [cell.strip() for cell in line.split("|")[2:-1]]
            error = "error" if mean == "score" else "normed_error"
            each = [whole[task]["conditions"][name] for name in ("global", "window")]
            expected = [f"{100 * each[i][mean]:.1f} +- {100 * each[i][error]:.1f}" for i in range(2)]
            self.assertEqual(cells, [str(each[0]["examples"]), *expected])
        names = [line.split("|")[1].strip() for line in lines[4:]]
        self.assertEqual(names, ["pick, accuracy", "pick, accuracy by log-probability per character", "niah, match-all",
                                 "niah, length up to 1024", "niah, length up to 2048", "niah, length up to 4096",
                                 "niah, depth 30 to 40 %"])
        self.assertEqual(run("report", "r.jsonl", "--no-depths").stdout.decode().splitlines(), lines[:-1])
        # conditions of another file beside them
        settings, *records = read_lines("r.jsonl")
        mine = [{**each, "condition": "trained"} for each in records if each["condition"] == "window"]
        write_lines("s.jsonl", [settings, *mine])
        both = run("report", "--together", "r.jsonl", "s.jsonl").stdout.decode().splitlines()
        self.assertEqual(both[:3], [lines[0], lines[0].replace("r.jsonl", "s.jsonl"), ""])
        self.assertEqual(both[3], "| task | examples | global | window | trained |")
        for here, there in zip(both[5:], lines[4:], strict=True):
            self.assertEqual(here, f"{there} {there.split('|')[-2].strip()} |")
        write_lines("f.jsonl", [settings, *mine[1:]])  # a cell of fewer examples than its row says so
        fewer = run("report", "--together", "r.jsonl", "f.jsonl").stdout.decode().splitlines()
        self.assertRegex(fewer[5], r"^\| pick, accuracy \| 4 \|.* \(3\) \|$")
        self.assertIn("s.jsonl: has example 0 of pick under trained, as has a file before it",
                      run("report", "--together", "s.jsonl", "s.jsonl", code=1).stderr.decode())
        self.assertIn(b"is of one file", run("report", "r.jsonl", "s.jsonl", "--plot", "m.svg", code=1).stderr)
        if shutil.which("gnuplot"):
            run("report", "--together", "r.jsonl", "s.jsonl", "--plot", "map.svg")
            run("report", "r.jsonl", "--plot", "map.svg")
            self.assertGreater(os.path.getsize("map.svg"), 1000)
            write_lines("n.jsonl", read_lines("r.jsonl")[:2])
            self.assertIn(b"no result knows the depth", run("report", "n.jsonl", "--plot", "m.svg", code=1).stderr)

    def test_refusals(self):
        for text, said in [("", "r.jsonl: has no results"), ('{"task": 7}\n', "r.jsonl:1: task"),
                           ('{"settings": 5}\n', "r.jsonl: has no results")]:
            put("r.jsonl", text)
            self.assertIn(said, run("report", "r.jsonl", code=1).stderr.decode())


class Refusals(Base):
    def test_tasks(self):
        good = '{"context": "a", "continuations": ["b", "c"], "gold": 0}\n'
        for text, said in [
            ("", "t.jsonl: has no example"),
            ("[]\n", "t.jsonl:1: is not a JSON object; a task is a file of JSON lines"),
            ("\nIt was the best of times", "t.jsonl:2: is not a JSON object; a task is a file of JSON lines"),
            (good + "{}\n", "t.jsonl:2: has none of the fields outputs, answers, continuations and request"),
            (good + '{"context": "a", "continuations": ["b", 7], "gold": 0}', "t.jsonl:2: continuations"),
            (good + '{"context": "a", "continuations": ["b", "c"], "gold": 2}', "t.jsonl:2: gold: is 2"),
            (good + '{"context": "a", "continuations": ["b", "c"]}', "t.jsonl:2: gold"),
            (good + '{"context": "a", "continuations": []}', "t.jsonl:2: continuations: has no entry"),
            (good + '{"context": "", "continuations": ["b", "c"], "gold": 0}', "t.jsonl:2: a context is empty"),
            (good + '{"context": "a", "continuations": ["b"]}', "t.jsonl:2: is of another kind"),
            (good + '{"input": "a", "outputs": ["b"]}', "t.jsonl:2: is of another kind"),
            ('{"input": "", "outputs": ["b"]}', "t.jsonl:1: input: is empty"),
            ('{"input": "a", "outputs": ["b"]}', "the task t is not known by its name; give --metric"),
            ('{"input": "a", "outputs": ["b"], "length": -1}', "t.jsonl:1: length"),
            ('{"request": {"context": "a"}, "doc_id": 0}', "t.jsonl:1: request.continuation"),
            ('{"request": {"context": "a", "continuation": "b"}}', "t.jsonl:1: doc_id"),
            ('{"request": {"context": "a", "continuation": "b"}, "doc_id": 0, "label": 1}', "t.jsonl:1: label: is 1"),
            (good.replace("}", ', "task_name": "x"}') + good.replace("}", ', "task_name": "y"}'),
             "t.jsonl:2: is of the task y"),
            (good + "\n" + good[:30] + "\n", "t.jsonl:3: "),
            ('{"context": " ", "continuations": ["b", "c"], "gold": 0}', "a context has no token of its own"),
        ]:
            put("t.jsonl", text)
            message = evaluate("t.jsonl", code=1).stderr.decode()
            self.assertIn(said, message)
            self.assertTrue(message.startswith("rosatune eval: "), message)

    def test_options(self):
        write_choices("t.jsonl")
        evaluate("t.jsonl", "--out", "r.jsonl")
        with open("r.jsonl", "rb") as file, gzip.open("r.jsonl.gz", "wb") as packed:
            packed.write(file.read())
        put("other.json", "{}")
        for words, said in [
            (["t.jsonl", "--conditions", "window"], "--conditions window: this needs --window"),
            (["t.jsonl", "--conditions", "global,sky"], "--conditions sky: is none of"),
            (["t.jsonl", "--metric", "choice"], "--metric choice: is for choices"),
            (["t.jsonl", "t.jsonl"], "t.jsonl: has the task t, and so has t.jsonl"),
            (["t.jsonl", "--out", "."], "--out .: is not a regular file"),
            (["t.jsonl", "--out", "other.json"], "--out other.json: is not an uncompressed file of results"),
            (["t.jsonl", "--out", "r.jsonl.gz"], "--out r.jsonl.gz: is not an uncompressed file of results"),
            (["gone.jsonl"], "gone.jsonl"),
        ]:
            self.assertIn(said, evaluate(*words, code=1).stderr.decode())
        self.assertEqual(os.path.getsize("other.json"), 2)

    def test_results(self):
        write_choices("t.jsonl")
        evaluate("t.jsonl", "--out", "r.jsonl")
        with open("r.jsonl", encoding="utf-8") as file:
            lines = file.readlines()
        for old, new, said in [('"score": ', '"score": 3', "score: is 3"), ('"score"', '"scare"', "has no field score"),
                               ('"global"', '"a|b"', "condition: is no name"), ('"choice"', '"c"', 'metric: is "c"'),
                               ('"sum": "', '"sum": "z', "sum: is not 16"), ('"example": ', '"example": -', "example"),
                               ("{", "", "r.jsonl:3: ")]:
            with open("r.jsonl", "w", encoding="utf-8") as file:
                file.writelines([*lines[:2], lines[2].replace(old, new, 1), *lines[3:]])
            message = evaluate("t.jsonl", "--out", "r.jsonl", code=1).stderr.decode()
            self.assertIn("r.jsonl:3: ", message)
            self.assertIn(said, message)


if __name__ == "__main__":
    main(dict(plain={}))
