/*
 * The page of `rosatune serve`.
 *
 * It uses the server's public interface and nothing else: /v1/chat/completions (or /v1/completions for models that
 * cannot chat) with the object "rosatune", /tokenize for the text at every position, /props and /metrics.
 *
 * A text that is added is read at once, by asking for a single token: what was read is kept by the server, so that the
 * question afterwards is answered without reading it again. The answer with memory off comes after the other one, for
 * the same reason.
 */
"use strict";

const LONG_PASTE = 2000; // characters from which on what is pasted counts as a text
const SNIPPET = 14; // tokens before and after a place
const SHOWN = 4; // places of a token that are listed
const LONG_MATCH = 4; // tokens: one of this length is hardly chance
const SVG = "http://www.w3.org/2000/svg";

const find = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const percent = (share) => (100 * share).toFixed(share < 0.1 ? 1 : 0) + " %";

let props = {};
let messages = []; // of the conversation so far
let texts = []; // added since the last question: {name, text, item}
let running = null; // an AbortController while something is asked for

/* ---------------------------------------------------------------------------------------------------- the server -- */

function headers() {
	const key = find("key").value;
	return { "Content-Type": "application/json", ...(key ? { Authorization: "Bearer " + key } : {}) };
}

async function call(path, body, signal) {
	const response = await fetch(path, {
		method: body ? "POST" : "GET", headers: headers(), body: body && JSON.stringify(body), signal,
	});

	if (response.ok)
		return response;
	const text = await response.text();
	let message = text;
	try {
		message = JSON.parse(text).error.message;
	} catch {
		// not in the form of an error: shown as it is
	}
	throw new Error(message || "the server answered " + response.status);
}

/* The events of a stream. */
async function* stream(path, body, signal) {
	const reader = (await call(path, body, signal)).body.getReader();
	const decoder = new TextDecoder();
	let rest = "";

	for (;;) {
		const { done, value } = await reader.read();
		if (done)
			throw new Error("the server ended the answer early");
		const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
		rest = events.pop();
		for (const event of events) {
			const data = event.replace(/^data: /, "");
			if (data === "[DONE]")
				return;
			const parsed = JSON.parse(data);
			if (parsed.error)
				throw new Error(parsed.error.message);
			yield parsed;
		}
	}
}

/* What is sent for a conversation. Models without a chat template continue the text of it. */
function asBody(said) {
	return props.chat_template ? { messages: said } : { prompt: said.map((m) => m.content).join("\n\n") };
}

/* --------------------------------------------------------------------------------------------------- the context -- */

/* All tokens of a text: how many characters stand before each, and the characters. */
class Context {
	constructor(answer) {
		this.points = Array.from(answer.text);
		this.starts = answer.offsets;
		this.prompt = answer.count;
		this.base = this.points.length;
	}

	get count() {
		return this.starts.length;
	}

	addText(text) {
		for (const point of text)
			this.points.push(point);
	}

	addToken(offset) {
		this.starts.push(this.base + offset);
	}

	/* The text of tokens `from` to before `to`. */
	text(from, to) {
		const first = Math.max(from, 0);
		const end = to < this.count ? this.starts[to] : this.points.length;
		return first < this.count ? this.points.slice(this.starts[first], end).join("") : "";
	}
}

/* ------------------------------------------------------------------------------------------------------ elements -- */

function make(name, className, text) {
	const element = document.createElement(name);
	if (className)
		element.className = className;
	if (text !== undefined)
		element.textContent = text;
	return element;
}

function rectangle(x, y, width, height, className) {
	const rect = document.createElementNS(SVG, "rect");
	for (const [key, value] of Object.entries({ x, y, width, height }))
		rect.setAttribute(key, value);
	if (className)
		rect.setAttribute("class", className);
	return rect;
}

function tell(text) {
	find("status").textContent = text;
}

function bytes(count) {
	const units = ["bytes", "kB", "MB", "GB"];
	let unit = 0;
	for (; count >= 1000 && unit < units.length - 1; unit++)
		count /= 1000;
	return (unit && count < 100 ? count.toFixed(1) : Math.round(count)) + " " + units[unit];
}

/* For screen readers: an answer sentence by sentence while it is being written. */
class Speech {
	constructor() {
		find("spoken").replaceChildren();
		this.rest = "";
	}

	add(text) {
		const parts = (this.rest + text).split(/(?<=[.!?:]\s|\n)/);
		this.rest = parts.pop();
		this.say(parts.join(""));
	}

	end() {
		this.say(this.rest);
	}

	say(text) {
		if (text.trim())
			find("spoken").append(make("p", "", text));
	}
}

/* -------------------------------------------------------------------------------------------------------- a turn -- */

/* A question, its answers, and where the first of them looked. */
class Turn {
	constructor(question) {
		this.element = find("turn").content.firstElementChild.cloneNode(true);
		this.part(".asked").textContent = question;
		this.said = this.part(".with .said");
		this.answer = "";
		this.tokens = [];
		this.marks = new Map(); // by position: the longest match, and whether a token there was the one chosen
		this.at = -1;
		find("empty").hidden = true;
		find("turns").append(this.element);
		this.listen();
		this.element.scrollIntoView({ block: "start" });
	}

	part(selector) {
		return this.element.querySelector(selector);
	}

	/* The context is known: the strip has a length. */
	open(context) {
		this.context = context;
		this.part(".looked").hidden = !(props.adapter || props.pointer);
		this.part(".summary").textContent = "A mark is a place that was read; a taller one had a longer match, a " +
			"coloured one held the word that was written. " +
			(props.window ? `Grey: the last ${number.format(props.window)} tokens, which attention still sees.` : "");
		this.draw();
	}

	progress(which, share) {
		this.part(`.${which} progress`).value = share;
		if (which === "with" && this.context) {
			this.share = share;
			this.drawSoon();
		}
	}

	/* More of the answer with memory. */
	add(text, tokens) {
		this.context.addText(text);
		for (const token of tokens) {
			this.context.addToken(token.offset);
			this.tokens.push(this.newToken(token));
		}
		/* a token's text may come after it: those at the end are written again */
		for (const token of this.tokens.slice(-8 - tokens.length))
			token.element.textContent = this.context.text(token.position, token.position + 1);
		this.drawSoon();
	}

	newToken(token) {
		const element = make("span", "token");
		const hits = token.places.filter((place) => place.hit);
		const longest = Math.max(0, ...hits.map((place) => place.length));

		element.dataset.index = this.tokens.length;
		element.tabIndex = this.tokens.length ? -1 : 0;
		element.classList.toggle("found", token.places.length > 0);
		element.classList.toggle("hit", hits.length > 0);
		element.classList.toggle("long", longest >= LONG_MATCH);
		this.said.append(element);
		for (const place of token.places) {
			const mark = this.marks.get(place.position) || { length: 0, hit: false };
			this.marks.set(place.position, {
				length: Math.max(mark.length, place.length), hit: mark.hit || place.hit,
			});
		}
		return { ...token, element };
	}

	/* --------------------------------------------------------------------------------------------- the strip -- */

	drawSoon() {
		if (this.drawing)
			return;
		this.drawing = true;
		requestAnimationFrame(() => {
			this.drawing = false;
			this.draw();
		});
	}

	x(position) {
		return (1000 * position) / this.context.count;
	}

	markOf(position, length, className) {
		const width = Math.max(1000 / this.context.count, 2.5);
		const height = Math.min(48, 8 + 10 * Math.log2(length));
		return rectangle(this.x(position), 48 - height, width, height, className);
	}

	draw() {
		const count = this.context.count;
		const seen = Math.min(props.window || 0, count);
		const share = this.tokens.length ? 0 : this.share || 0; // while it is being read

		this.part(".read").setAttribute("width", this.x(this.context.prompt) * share);
		this.part(".seen").setAttribute("x", this.x(count - seen));
		this.part(".seen").setAttribute("width", this.tokens.length ? this.x(seen) : 0);
		this.part(".marks").replaceChildren(...[...this.marks].sort(([, a], [, b]) => a.hit - b.hit)
			.map(([position, mark]) => this.markOf(position, mark.length, mark.hit ? "hit" : "")));
		this.part(".strip").setAttribute("aria-valuemax", count - 1);
	}

	/* ---------------------------------------------------------------------------------------------- choosing -- */

	listen() {
		const strip = this.part(".strip");
		const tokenOf = (event) => event.target.closest(".token");

		for (const kind of ["pointerover", "focusin"])
			this.said.addEventListener(kind, (event) => tokenOf(event) && this.choose(+tokenOf(event).dataset.index));
		this.said.addEventListener("click", (event) => tokenOf(event)?.focus());
		this.said.addEventListener("keydown", (event) => this.walk(event));
		strip.addEventListener("pointermove", (event) => this.lookAt(this.under(event)));
		strip.addEventListener("click", (event) => this.lookAt(this.under(event)));
		strip.addEventListener("keydown", (event) => this.slide(event));
		strip.addEventListener("focus", () => this.lookAt(this.at < 0 ? 0 : this.at));
	}

	under(event) {
		const box = this.part(".strip").getBoundingClientRect();
		return Math.floor(((event.clientX - box.left) / box.width) * this.context.count);
	}

	/* Arrow keys in an answer. */
	walk(event) {
		const last = this.tokens.length - 1;
		const at = this.tokens.findIndex((token) => token.element === document.activeElement);
		const to = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - 10, ArrowDown: at + 10, Home: 0, End: last }[
			event.key];

		if (to === undefined || at < 0)
			return;
		event.preventDefault();
		this.tokens[Math.min(Math.max(to, 0), last)].element.focus();
	}

	/* And on the strip: from mark to mark, or by a twentieth. */
	slide(event) {
		const places = [...this.marks.keys()].sort((a, b) => a - b);
		const step = Math.ceil(this.context.count / 20);
		const to = {
			ArrowLeft: () => places.findLast((place) => place < this.at),
			ArrowRight: () => places.find((place) => place > this.at),
			PageDown: () => this.at - step,
			PageUp: () => this.at + step,
			Home: () => 0,
			End: () => this.context.count - 1,
		}[event.key];

		if (!to)
			return;
		event.preventDefault();
		this.lookAt(to() ?? this.at);
	}

	/* The text at a place of the strip. */
	lookAt(position) {
		if (!this.context)
			return;
		this.at = Math.min(Math.max(position, 0), this.context.count - 1);
		const mark = this.marks.get(this.at);
		const where = `Token ${number.format(this.at + 1)} of ${number.format(this.context.count)}` +
			(mark ? ` · read after a match of ${mark.length}` : "");
		const strip = this.part(".strip");

		strip.setAttribute("aria-valuenow", this.at);
		strip.setAttribute("aria-valuetext", where + ": " + this.context.text(this.at - 4, this.at + 5));
		this.part(".cursor").setAttribute("x", this.x(this.at));
		this.mark(-1);
		this.part(".places").replaceChildren(make("p", "where", where), this.snippet(this.at, mark?.length || 0));
	}

	mark(index) {
		const token = this.tokens[index];

		for (const other of this.said.querySelectorAll(".current"))
			other.classList.remove("current");
		this.part(".chosen").replaceChildren(
			...(token ? token.places.map((place) => this.markOf(place.position, place.length)) : []));
		if (!token)
			return;
		this.part(".cursor").setAttribute("x", -9);
		token.element.classList.add("current");
		for (const other of this.said.querySelectorAll("[tabindex='0']"))
			other.tabIndex = -1;
		token.element.tabIndex = 0;
	}

	/* The places that a token of the answer was read from. */
	choose(index) {
		const token = this.tokens[index];
		const places = this.together(token.places);
		const list = make("ol");
		const word = this.context.text(token.position, token.position + 1).trim();

		this.mark(index);
		for (const place of places.slice(0, SHOWN)) {
			const item = make("li");
			item.append(make("p", "where", this.describe(place)), this.snippet(place.position, place.length));
			list.append(item);
		}
		const more = places.length - SHOWN;
		const head = places.length
			? `Before “${word}” it looked at ${places.length} ${places.length > 1 ? "places" : "place"}` +
				(more > 0 ? `; the ${SHOWN} with the longest matches:` : ":")
			: `Before “${word}” nothing earlier matched.`;
		this.part(".places").replaceChildren(make("p", "where", head), list);
	}

	/* Pointer and adapter may read the same place: one entry for both, the longest match first. */
	together(places) {
		const all = new Map();

		for (const place of places) {
			const entry = all.get(place.position) || { ...place, by: {} };
			entry.by[place.by] = place.weight;
			entry.length = Math.max(entry.length, place.length);
			all.set(place.position, entry);
		}
		return [...all.values()].sort((a, b) => b.length - a.length || b.hit - a.hit || b.position - a.position);
	}

	describe(place) {
		const { pointer, adapter } = place.by;

		return [
			`Token ${number.format(place.position + 1)} of ${number.format(this.context.count)}`,
			`${place.length} ${place.length > 1 ? "tokens match" : "token matches"}`,
			...(pointer === undefined ? [] : [`${percent(pointer)} of the probability`]),
			...(adapter === undefined ? [] : [`gain ${adapter.toFixed(2)}`]),
			...(place.hit ? ["the word that was written"] : []),
		].join(" · ");
	}

	/* The text around a position, the match before it marked. */
	snippet(position, length) {
		const line = make("p", "snippet");
		const first = position - Math.min(length, 2 * SNIPPET);

		line.append("…" + this.context.text(first - SNIPPET, first),
			make("mark", "", this.context.text(first, position)),
			make("strong", "", this.context.text(position, position + 1)),
			this.context.text(position + 1, position + SNIPPET) + "…");
		return line;
	}
}

/* -------------------------------------------------------------------------------------------------------- meters -- */

function showSpeed(meter, speed) {
	meter.textContent = `${number.format(+speed.toFixed(speed < 10 ? 1 : 0))} tokens/s`;
}

/* Tokens per second as they come, over the time since the first of them. */
class Speed {
	constructor(meter) {
		this.meter = find(meter);
	}

	at(tokens) {
		const now = performance.now();

		if (this.began === undefined) {
			this.began = now;
			this.first = tokens;
		} else if (tokens > this.first && now - this.began > 200) {
			showSpeed(this.meter, (1000 * (tokens - this.first)) / (now - this.began));
		}
	}
}

/* What the server counts. Its own speeds are told when it has finished something. */
let counted = {};

function readSpeeds(metric) {
	const now = {
		reading: [metric("prompt_tokens_total") - metric("cached_tokens_total"), metric("prompt_seconds_total")],
		writing: [metric("tokens_predicted_total"), metric("tokens_predicted_seconds_total")],
	};

	for (const [name, [tokens, seconds]] of Object.entries(now)) {
		const [before, since] = counted[name] || [tokens, seconds];
		if (tokens > before && seconds > since)
			showSpeed(find("meter-" + name), (tokens - before) / (seconds - since));
		counted[name] = [tokens, seconds];
	}
}

async function readMetrics() {
	try {
		const text = await (await call("/metrics")).text();
		const metric = (name) => +(text.match(new RegExp(`^rosatune:${name} (\\S+)$`, "m"))?.[1] || 0);
		if (!running)
			readSpeeds(metric);
		const used = metric("session_bytes") + metric("running_bytes");

		find("meter-server").value = props.memory_bytes ? used / props.memory_bytes : 0;
		find("meter-kept").textContent = `${bytes(used)} of ${bytes(props.memory_bytes || 0)}`;
	} catch {
		// the meters stay as they were; a request that matters will tell what is wrong
	}
}

/* -------------------------------------------------------------------------------------------------------- asking -- */

/* Asks and passes on what comes. `memory`: on or off; `seen`: {progress(share), more(text, tokens)}. */
async function request(said, memory, most, seen) {
	const body = {
		...asBody(said), max_tokens: most, stream: true, temperature: +find("temperature").value || 0,
		seed: Math.trunc(+find("seed").value) || 0, stream_options: { include_usage: true },
		rosatune: { places: memory, memory, progress: true },
	};
	const path = props.chat_template ? "/v1/chat/completions" : "/v1/completions";
	const reading = new Speed("meter-reading"), writing = new Speed("meter-writing");
	let made = 0, usage = null;

	for await (const event of stream(path, body, running.signal)) {
		usage = event.usage || usage;
		if (!event.choices.length && event.rosatune) {
			const { prompt_tokens: prompt, cached_tokens: cached, tokens_read: read } = event.rosatune;
			reading.at(read);
			seen.progress((cached + read) / prompt, cached + read, prompt);
		}
		for (const choice of event.choices) {
			const text = props.chat_template ? choice.delta.content || "" : choice.text;
			const tokens = choice.rosatune?.tokens || [];
			const held = choice.rosatune?.bytes;

			made += tokens.length || (text ? 1 : 0);
			if (text || tokens.length) {
				writing.at(made);
				seen.progress(1);
				seen.more(text, tokens);
			}
			if (held)
				find("meter-memory").textContent = `${bytes(held.attention)} for attention, ` +
					`${bytes(held.retrieval + held.values)} for the past`;
		}
	}
	if (usage)
		find("meter-text").textContent = `${number.format(usage.total_tokens)} tokens`;
	return usage;
}

/* One thing at a time: what is asked for can be stopped. */
async function alone(work) {
	if (running)
		return;
	running = new AbortController();
	find("ask").disabled = find("anew").disabled = find("choose").disabled = true;
	find("stop").disabled = false;
	find("alert").textContent = "";
	const timer = setInterval(readMetrics, 2000);

	try {
		await work();
	} catch (error) {
		const stopped = error.name === "AbortError";
		tell(stopped ? "Stopped." : "");
		find("alert").textContent = stopped ? "" : error.message;
	}
	clearInterval(timer);
	running = null;
	find("ask").disabled = find("anew").disabled = find("choose").disabled = false;
	find("stop").disabled = true;
	readMetrics();
	readTexts();
}

async function answerWith(turn, said) {
	const speech = new Speech();
	const known = await call("/tokenize", asBody(said), running.signal);
	turn.open(new Context(await known.json()));
	turn.said.setAttribute("aria-busy", "true");
	await request(said, true, +find("most").value, {
		progress: (share, read, prompt) => {
			turn.progress("with", share);
			if (prompt)
				tell(`Reading: ${number.format(read)} of ${number.format(prompt)} tokens.`);
		},
		more: (text, tokens) => {
			tell("Writing.");
			turn.answer += text;
			turn.add(text, tokens);
			speech.add(text);
		},
	}).finally(() => {
		speech.end();
		turn.said.removeAttribute("aria-busy");
		turn.part(".with progress").hidden = true;
		if (turn.answer)
			messages = [...said, { role: "assistant", content: turn.answer }];
	});
}

async function answerWithout(turn, said) {
	const to = turn.part(".without .said");

	turn.part(".answers").classList.add("both");
	turn.part(".without").hidden = false;
	to.setAttribute("aria-busy", "true");
	await request(said, false, +find("most").value, {
		progress: (share, read, prompt) => {
			turn.progress("without", share);
			if (prompt)
				tell(`With memory off: reading, ${number.format(read)} of ${number.format(prompt)} tokens.`);
		},
		more: (text) => {
			tell("Writing with memory off.");
			to.append(text);
		},
	}).finally(() => {
		to.removeAttribute("aria-busy");
		turn.part(".without progress").hidden = true;
	});
}

function ask() {
	const question = find("question").value.trim();

	if (!question && !texts.length)
		return;
	alone(async () => {
		const given = texts;
		const names = given.map((text) => text.name);
		const content = [...given.map((text) => text.text), question].filter((part) => part).join("\n\n");
		const said = [...messages, { role: "user", content }];
		const turn = new Turn((question || "(no question)") + (names.length ? `  [${names.join(", ")}]` : ""));

		find("question").value = "";
		find("texts").replaceChildren();
		texts = [];
		await answerWith(turn, said);
		if (find("compare").checked && (props.adapter || props.pointer))
			await answerWithout(turn, said);
		tell("Done.");
	});
}

/* --------------------------------------------------------------------------------------------------------- texts -- */

function addText(name, text) {
	if (!text.trim())
		return;
	const item = make("li", "", `${name}: ${number.format(text.length)} characters. `);
	const bar = make("progress");
	const remove = make("button", "", "Remove");

	bar.max = 1;
	bar.value = 0;
	bar.setAttribute("aria-label", "Read of " + name);
	remove.type = "button";
	remove.setAttribute("aria-label", "Remove " + name);
	remove.addEventListener("click", () => {
		texts = texts.filter((other) => other.item !== item);
		item.remove();
		find("question").focus();
	});
	item.append(make("span", "state", "Waiting to be read."), bar, remove);
	find("texts").append(item);
	texts.push({ name, text, item });
	readTexts();
}

/* Reads what was added, so that the server knows it before the question comes. */
function readTexts() {
	const next = texts.find((text) => !text.tried);

	if (!next || running)
		return;
	next.tried = true;
	alone(async () => {
		const content = texts.slice(0, texts.indexOf(next) + 1).map((text) => text.text).join("\n\n");
		const state = next.item.querySelector(".state");
		const bar = next.item.querySelector("progress");

		try {
			await request([...messages, { role: "user", content }], true, 1, {
				progress: (share, read, prompt) => {
					bar.value = share;
					if (prompt) {
						state.textContent = `Reading: ${number.format(read)} of ${number.format(prompt)} tokens.`;
						tell(state.textContent);
					}
				},
				more: () => {},
			});
			state.textContent = "Read.";
			tell(`${next.name} was read. Ask about it.`);
		} catch (error) {
			state.textContent = "Not read to the end.";
			throw error;
		}
		find("question").focus();
	});
}

async function addFiles(files) {
	for (const file of files)
		addText(file.name, await file.text());
}

/* --------------------------------------------------------------------------------------------------------- start -- */

function listen() {
	find("form").addEventListener("submit", (event) => {
		event.preventDefault();
		ask();
	});
	find("question").addEventListener("keydown", (event) => {
		if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
			event.preventDefault();
			ask();
		}
	});
	find("question").addEventListener("paste", (event) => {
		const text = event.clipboardData.getData("text");
		if (text.length >= LONG_PASTE) {
			event.preventDefault();
			addText("Pasted text", text);
		}
	});
	find("stop").addEventListener("click", () => running?.abort());
	find("choose").addEventListener("click", () => find("file").click());
	find("file").addEventListener("change", async (event) => {
		await addFiles(event.target.files);
		event.target.value = "";
	});
	find("anew").addEventListener("click", () => {
		messages = [];
		texts = [];
		find("turns").replaceChildren();
		find("texts").replaceChildren();
		find("empty").hidden = false;
		find("question").focus();
		tell("A new conversation.");
	});
	find("key").addEventListener("change", start);
	document.addEventListener("dragover", (event) => {
		event.preventDefault();
		document.body.classList.add("dropping");
	});
	document.addEventListener("dragleave", (event) => {
		if (!event.relatedTarget)
			document.body.classList.remove("dropping");
	});
	document.addEventListener("drop", (event) => {
		event.preventDefault();
		document.body.classList.remove("dropping");
		const dropped = event.dataTransfer.getData("text");
		if (event.dataTransfer.files.length)
			addFiles(event.dataTransfer.files);
		else if (dropped)
			addText("Dropped text", dropped);
	});
}

async function start() {
	try {
		props = await (await call("/props")).json();
		find("alert").textContent = "";
	} catch (error) {
		find("alert").textContent = error.message;
		return;
	}
	const memory = [props.adapter && "adapter", props.pointer && "pointer"].filter((part) => part).join(" and ");

	find("model").textContent = `${props.model} · attention sees ` +
		(props.window ? `the last ${number.format(props.window)} tokens` : "all tokens") +
		(memory ? ` · memory: ${memory}` : " · no memory: start the server with --adapter or --pointer");
	find("compare").disabled = !memory;
	find("compare").checked &&= Boolean(memory);
	readMetrics();
}

listen();
start();
