"""The page of rosatune serve in Chromium, on a tiny model. The first argument is the program."""
import contextlib
import json
import os
import re
import sys

sys.dont_write_bytecode = True
import browser
from tiny_model import WINDOW, Base, main, message, put, write_adapter, write_pointer
from tiny_server import CHAT, STORY, Server

TEXT = (STORY + " He lived by the river. ") * 3
QUESTION = "Who was the ferryman?"
MOST = 24
MEMORY = [*WINDOW, "--pointer", "pointer.json"]
CONTROLS = {"button", "textbox", "checkbox", "slider", "spinbutton", "link", "progressbar", "meter", "region"}


def asked(content, **fields):
    return dict(messages=[{"role": "user", "content": content}], max_tokens=MOST, temperature=0, seed=1) | fields


class Page(Base):
    def setUp(self):
        super().setUp()
        write_pointer("pointer.json", 8)

    @contextlib.contextmanager
    def page(self, *words, **looks):
        """The page of a server, with few tokens to an answer. The browser must have nothing to complain of."""
        with Server(*words) as server, browser.Browser(**looks) as page:
            page.open(f"http://127.0.0.1:{server.port}/")
            page.until("find('model').textContent !== 'Connecting…' || find('alert').textContent")
            page.run(f"find('most').value = {MOST}")
            yield server, page
            self.assertEqual(page.problems(), [])

    def ask(self, page, question):
        page.run("find('question').focus()")
        page.type(question)
        page.press("Enter", 13, "\r")
        self.idle(page)
        self.assertEqual((page.text("#alert"), page.text("#status")), ("", "Done."))

    def idle(self, page):
        page.until("!running")

    def test_a_text_is_read_and_asked_about(self):
        with self.page(*MEMORY, "--chunk", "16") as (server, page):
            page.run(f"""(() => {{
                const given = new DataTransfer();
                given.items.add(new File([{json.dumps(TEXT)}], "story.txt"));
                document.body.dispatchEvent(new DragEvent("drop", {{dataTransfer: given, bubbles: true}}));
            }})()""")
            page.until("document.querySelector('#texts .state')?.textContent === 'Read.'")
            self.assertEqual(page.run("document.querySelector('#texts progress').value"), 1)
            self.ask(page, QUESTION)
            content = TEXT + "\n\n" + QUESTION
            on = server.post(CHAT, **asked(content, rosatune={"places": True}))["choices"][0]
            off = server.post(CHAT, **asked(content, rosatune={"memory": False}))["choices"][0]
            self.assertEqual(page.text(".with .said"), on["message"]["content"])
            self.assertEqual(page.text(".without .said"), off["message"]["content"])
            self.assertIn("tokens", page.text("#meter-text"))
            self.assertRegex(page.text("#meter-memory"), "for attention, .* for the past")
            self.check_places(page, content, on)
            self.check_strip(page, on)
            # A second turn has the first before it.
            self.ask(page, "And then?")
            self.assertEqual(page.run("messages.map((message) => message.role)"), ["user", "assistant"] * 2)
            self.assertEqual(page.run("messages[1].content"), on["message"]["content"])
            self.assertEqual(page.run("document.querySelectorAll('.turn').length"), 2)

    def check_places(self, page, content, answer):
        """Every word by keyboard, and one by mouse: what is shown is what the server says."""
        tokens = answer["rosatune"]["tokens"]
        whole = message("user", content) + "<|im_start|>assistant\n" + answer["message"]["content"]
        pieces = re.findall(r"<\|im_\w+\|>|.", whole, re.S)  # one for each token
        page.run("document.querySelector('.with .token').focus()")
        for index, token in enumerate(tokens):
            if index:
                page.press("ArrowRight", 39)
            self.assertEqual(page.run("document.activeElement.dataset.index"), str(index))
            places = sorted(token["places"], key=lambda place: -place["length"])
            shown = page.run("[...document.querySelectorAll('.places li')].map((item) => item.textContent)")
            self.assertEqual(len(shown), min(len(places), 4))
            for text, place in zip(shown, places[:1]):
                at, length = place["position"], place["length"]
                self.assertIn(f"Token {at + 1} of {len(pieces)}", text)
                self.assertIn("".join(pieces[at - length: at + 5]), text)
            self.assertEqual(page.run("document.querySelectorAll('.chosen rect').length"), len(places))
        page.press("Home", 36)
        self.assertEqual(page.run("document.activeElement.dataset.index"), "0")
        page.point(".with .token:nth-child(9)")
        page.until("document.querySelector('.with .current')?.dataset.index === '8'")

    def check_strip(self, page, answer):
        places = {p["position"] for token in answer["rosatune"]["tokens"] for p in token["places"]}
        self.assertEqual(page.run("document.querySelectorAll('.marks rect').length"), len(places))
        page.run("document.querySelector('.strip').focus()")
        page.press("Home", 36)
        seen = []
        for _ in places:
            page.press("ArrowRight", 39)
            seen.append(int(page.run("document.querySelector('.strip').getAttribute('aria-valuenow')")))
        self.assertEqual(seen, sorted(places - {0}) + [max(places)] * (0 in places))
        page.press("End", 35)
        self.assertIn(answer["message"]["content"][-4:],
                      page.run("document.querySelector('.strip').getAttribute('aria-valuetext')"))
        page.point(".strip", 0)
        page.until("document.querySelector('.strip').getAttribute('aria-valuenow') === '0'")

    def test_texts_that_are_pasted_or_chosen(self):
        put("chosen.txt", "Chosen. " + STORY)
        with self.page(*MEMORY) as (_, page):
            page.run(f"""(() => {{
                const given = new DataTransfer();
                given.setData("text", {json.dumps(STORY * 100)});
                find("question").dispatchEvent(new ClipboardEvent("paste", {{clipboardData: given, bubbles: true}}));
            }})()""")
            self.idle(page)
            root = page.call("DOM.getDocument")["root"]["nodeId"]
            node = page.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
            page.call("DOM.setFileInputFiles", nodeId=node, files=[os.path.abspath("chosen.txt")])
            page.until("[...document.querySelectorAll('#texts .state')].map((s) => s.textContent).join() === 'Read.,Read.'")
            page.run("document.querySelector('#texts li:first-child button').click()")
            page.run("find('compare').click()")
            self.ask(page, QUESTION)
            self.assertEqual(page.run("messages[0].content"), f"Chosen. {STORY}\n\n{QUESTION}")
            self.assertTrue(page.run("document.querySelector('.without').hidden"))

    def test_an_adapter_alone(self):
        write_adapter("adapter", chain=2)
        with self.page("--adapter", "adapter", "--pointer", "none") as (_, page):
            self.ask(page, TEXT)
            page.run("document.querySelector('.with .token').focus()")
            page.until("document.querySelector('.places').textContent.includes('gain')")

    def test_no_memory(self):
        with self.page() as (_, page):
            self.assertIn("no memory", page.text("#model"))
            self.ask(page, QUESTION)
            self.assertTrue(page.run("document.querySelector('.looked').hidden && find('compare').disabled"))

    def test_what_goes_wrong_is_said(self):
        with self.page(*MEMORY) as (server, page):
            page.run("""(() => {
                const add = Turn.prototype.add;
                Turn.prototype.add = function (...more) {
                    add.apply(this, more);
                    if (this.tokens.length > 20)
                        find("stop").click();
                };
                find("most").value = 100000;
                find("question").value = "Go on.";
                ask();
            })()""")
            self.idle(page)
            self.assertGreater(page.run("document.querySelectorAll('.with .token').length"), 20)
            self.assertEqual(page.text("#status"), "Stopped.")
            server.until("requests_processing", 0)
        with self.page(*MEMORY, "--memory", "300k") as (_, page):
            page.run(f"find('question').value = {json.dumps('x' * 20000)}; ask()")
            self.idle(page)
            self.assertIn("does not fit into the server's memory", page.text("#alert"))

    def test_keys(self):
        put("key", "sk-secret\n")
        with Server(*MEMORY, "--api-key-file", "key") as server, browser.Browser() as page:
            page.open(f"http://127.0.0.1:{server.port}/")
            page.until("find('alert').textContent.includes('API key')")
            page.run("find('key').value = 'sk-secret'; start()")
            page.until("find('model').textContent.includes('pointer')")
            self.ask(page, QUESTION)

    def test_for_everyone(self):
        """Names for all controls, an order of the keyboard, narrow screens, and colours that can be told apart."""
        with self.page(*MEMORY, width=320, height=600) as (_, page):
            self.ask(page, TEXT)
            page.run("document.querySelector('details').open = true")
            named = [(role, name) for role, name in page.roles() if role in CONTROLS]
            self.assertGreater(len(named), 12)
            self.assertEqual([role for role, name in named if not name.strip()], [])
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), 320)
            page.run("document.querySelector('.skip').focus()")
            order = []
            for _ in range(12):
                page.press("Tab", 9)
                order.append(page.run("document.activeElement.id || document.activeElement.classList[0] || "
                                      "document.activeElement.localName"))
            self.assertEqual(order, ["token", "strip", "question", "ask", "choose", "anew", "compare", "summary", "most",
                                     "temperature", "seed", "key"])
            for dark in False, True:
                page.scheme(dark)
                for ink, ground in [("ink", "ground"), ("quiet", "ground"), ("quiet", "raised"), ("ink", "soft"),
                                    ("on-accent", "accent"), ("alert", "ground"), ("chosen", "raised"),
                                    ("ground", "chosen")]:
                    pair = [page.run(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')")
                            for name in (ink, ground)]
                    self.assertGreaterEqual(contrast(*pair), 4.5, (dark, ink, ground))


def contrast(one, other):
    """WCAG's ratio of two colours."""
    def luminance(colour):
        parts = [int(colour.strip()[i: i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


if __name__ == "__main__":
    if not browser.program():
        print("skipped: there is no Chromium; apt-get install chromium", file=sys.stderr)
        sys.exit(77)
    main({"plain": {}})
