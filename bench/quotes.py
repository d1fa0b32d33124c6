#!/usr/bin/env python3
"""Instruction data for a model with memory: facts hidden in long texts, asked for later, answered by quoting.

    bench/quotes.py --out quotes --texts NOVELS/*.txt --documents 100

Each document is running text of the given files (or short sentences that repeat) with facts between its sentences:
"The locker number of amber-falcon is 48213." Some thousand characters later the fact is asked for, in words of another
template, and the answer begins with the name that was asked for and goes on as the text did:

    What is the locker number for amber-falcon, as told above? Answer: as the text says: amber-falcon is 48213.

A model with exact memory can learn this by itself: the name stands in the question, inside the window, and what
followed it is found from there. Of several values all are listed, the newest first, and each time from the name on:

    as the text says: amber-falcon is 7. amber-falcon is ember. amber-falcon is 48213.

What was quoted within the window is never found again. So at every name the links of a chain lead to all values, the
newest by the first link, and the answer goes on with the first that it has not given yet.

The form is modelled on RULER's needles, but no sentence, needle or text of a benchmark is used: keys are made of the
lists below, and the phrase "magic number" does not occur.
"""

import pathlib
import random
import re
import sys

import common

THINGS = ("locker number", "access code", "badge number", "secret word", "phone extension", "ticket number", "call sign",
          "room number", "serial number", "lucky number", "hidden code", "account number", "gate code", "mooring number",
          "catalogue number", "pass phrase", "registration code", "shelf mark", "voucher code", "recorded weight")
FIRST = ("amber", "brisk", "cobalt", "dusty", "early", "fabled", "gentle", "hollow", "ivory", "jolly", "keen", "lunar",
         "mossy", "narrow", "ochre", "placid", "quaint", "russet", "silver", "tawny", "upper", "velvet", "woolen", "young",
         "bitter", "copper", "distant", "eastern", "frozen", "golden", "humble", "inland")
SECOND = ("falcon", "anchor", "basket", "candle", "dragoon", "ember", "ferry", "garden", "harbour", "island", "jackdaw",
          "kettle", "lantern", "meadow", "needlework", "orchard", "pigeon", "quarry", "ribbon", "saddle", "thimble",
          "umbrella", "valley", "wagon", "abbey", "bridge", "castle", "doorway", "estuary", "forge", "granary", "hamlet")
SYLLABLES = "ba ce di fo gu ha ki lo mu ne pa qui ro su ta ve wo xi ya zo bran del fin gor hal jen kor lin mar nor".split()
# A fact ends with the name and what is said of it: what follows the name is what an answer has to bring.
FACTS = ("The {thing} of {name}{link}{value}.", "As for the {thing}, the one of {name}{link}{value}.",
         "It was written down that the {thing} for {name}{link}{value}.", "A note says: {thing} for {name}{link}{value}.",
         "Remember that the {thing} belonging to {name}{link}{value}.", "{Thing} for {name}{link}{value}.")
# Several values of a name are told in the same words, but for the first. So of what stood before, the last sentence is
# the longest match of each, and a chain from the newest leads through all of them.
FIRSTS = ("First", "Then", "Later", "Besides", "Again", "Elsewhere", "Moreover", "Finally", "Meanwhile", "Afterwards")
LINKS = (" is ", " is: ", ": ", " was ", " equals ", " reads ", " has been set to ", " = ")
QUESTIONS = ("What is the {thing} of {name}?", "What was the {thing} for {name}, as told above?",
             "Which {thing} belongs to {name} according to the text?", "Name the {thing} for {name}.",
             "What are all the {thing}s for {name} that the text gave?", "Tell me the {thing} of {name} in the passage.")
LEADS = ("", " The {thing} for {name} in the text above is", " The {thing} of {name} given in the passage is",
         " The {thing}s for {name} that were mentioned are", " The answer, for {name}, is", " Answer:",
         " According to the text, the {thing} of {name} is")
QUOTE = " as the text says: {name}{rest}."  # the name after a space, as it stands in the text: the same tokens
NOISE = ("The kettle was warm. The door stood open. ", "Rain fell on the roof and the street was empty. ",
         "One step follows another. The road goes on and on. ", "Nothing was moving. Time went by. All was well. ")


def name_of(dice):
    kind = dice.random()
    if kind < 0.5:
        return f"{dice.choice(FIRST)}-{dice.choice(SECOND)}"
    if kind < 0.8:
        return "".join(dice.choice(SYLLABLES) for _ in range(dice.randint(2, 3))).capitalize()
    return "".join(dice.choice("0123456789abcdef") for _ in range(8))


def value_of(dice):
    kind = dice.random()
    if kind < 0.6:
        return str(dice.randrange(10 ** 3, 10 ** dice.randint(4, 8)))
    if kind < 0.8:
        return "-".join("".join(dice.choice("0123456789abcdef") for _ in range(n)) for n in (8, 4, 4, 4, 12))
    return " ".join(dice.choice(SECOND) for _ in range(dice.randint(1, 3)))


class Fact:
    """What is said of a name, in one sentence or, with several values, in as many; and how a question names it."""

    def __init__(self, dice, names, values=1, thing=None):
        self.name = name_of(dice)
        while self.name in names:
            self.name = name_of(dice)
        names.add(self.name)
        own, link = dice.choice(THINGS), dice.choice(LINKS)
        thing = self.thing = thing or own
        self.rests = []
        while len(self.rests) < values:
            rest = link + value_of(dice)
            self.rests += [rest] if rest not in self.rests else []
        told = dice.choice(FACTS)
        self.sentences = [told.format(thing=thing, Thing=thing.capitalize(), name=self.name, link=rest, value="")
                          for rest in self.rests]
        if values > 1:
            self.sentences = [f"{first}, {sentence[0].lower()}{sentence[1:]}"
                              for first, sentence in zip(dice.sample(FIRSTS, values), self.sentences)]


def question(dice, facts):
    """A question about one fact or several, with its answer: of several values the newest comes first, which is the
    order in which a chain finds them."""
    name = facts[0].name
    if len(facts) > 1:
        name = ", ".join(fact.name for fact in facts[:-1]) + f" and {facts[-1].name}"
    words = dict(thing=facts[0].thing, name=name)
    text = dice.choice(QUESTIONS).format(**words) + dice.choice(LEADS).format(**words)
    first, *more = [(fact.name, rest) for fact in facts for rest in reversed(fact.rests)]
    return text + QUOTE.format(name=first[0], rest=first[1]) + "".join(f" {name}{rest}." for name, rest in more)


def document(dice, sentences, facts, nearest, farthest, several):
    """Sentences with facts among them, each asked for `nearest` to `farthest` characters later."""
    names, parts, length, asked = set(), [], 0, []
    waiting, place, run = facts, 0, dice.randrange(len(sentences))
    noise = dice.choice(NOISE) if dice.random() < 0.25 else None
    space = (nearest + farthest) // 12
    later = []  # (from which length on, the sentence): further values of names
    while waiting or asked:
        piece = (noise or sentences[(run + place) % len(sentences)] + " ") + "\n" * (place % 3 == 2)
        place += 1
        parts.append(piece)
        length += len(piece)
        if waiting and dice.random() < len(piece) / space:
            # Several facts of one thing, or several values of one name, are asked for together now and then.
            last = length
            if several and dice.random() < several:
                together = [Fact(dice, names, dice.randint(2, 4))]
            else:
                together = []
                for _ in range(min(waiting, dice.choice((1, 1, 1, 1, 2, 4)))):
                    together.append(Fact(dice, names, thing=together[0].thing if together else None))
            for fact in together:
                parts.append(fact.sentences[0] + " ")
                for sentence in fact.sentences[1:]:
                    last += dice.randint(100, max(100, farthest // 6))
                    later.append((last, sentence))
            waiting -= len(together)
            asked.append((last + dice.randint(nearest, farthest), together))
        for due in [entry for entry in later if entry[0] <= length]:
            later.remove(due)
            parts.append(due[1] + " ")
        for due in [entry for entry in asked if entry[0] <= length]:
            asked.remove(due)
            text = question(dice, due[1])
            parts.append(f"\n\n{text}\n\n")
            length += len(text)
    return "".join(parts)


def sentences_of(path):
    text = re.sub(r"\s+", " ", pathlib.Path(path).read_text(encoding="utf-8", errors="replace"))
    return [part for part in re.split(r"(?<=[.!?]) ", text) if 20 < len(part) < 250]


def main():
    parser = common.parser(__doc__.split("\n", maxsplit=1)[0], program=False, report=False)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a folder, made if need be")
    parser.add_argument("--texts", nargs="+", required=True, help="text files between whose sentences facts are put")
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--facts", type=int, default=60, help="per document")
    parser.add_argument("--nearest", type=int, default=5000, help="characters from a fact to its question, at least")
    parser.add_argument("--farthest", type=int, default=20000, help="at most")
    parser.add_argument("--several", type=float, default=0.25, help="share of facts that have two to four values")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if not 0 < args.nearest <= args.farthest:
        common.die(f"--nearest {args.nearest} --farthest {args.farthest}: give 0 < nearest <= farthest")
    books = [sentences for sentences in map(sentences_of, args.texts) if sentences]
    if not books:
        common.die("the texts have no sentences")
    args.out.mkdir(parents=True, exist_ok=True)
    dice = random.Random(args.seed)
    for i in range(args.documents):
        text = document(dice, books[i % len(books)], args.facts, args.nearest, args.farthest, args.several)
        (args.out / f"quotes-{i:04}.txt").write_text(text, encoding="utf-8")
    print(f"{args.documents} documents in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
