"use strict";

// Everything works without this script, except that pages then do not change by themselves.

// ------------------------------------------------------------------------------------------------- ages

const ageOf = (seconds) => {
  const distance = Math.abs(seconds);
  const text =
    distance < 60 ? `${Math.floor(distance)} s`
    : distance < 3600 ? `${Math.floor(distance / 60)} min`
    : distance < 172800 ? `${Math.floor(distance / 3600)} h`
    : `${Math.floor(distance / 86400)} d`;
  return distance < 1 ? "now" : seconds < 0 ? `in ${text}` : `${text} ago`;
};

// The server's clock counts: a page says when it was made.
const clockOffset = () => {
  const made = document.querySelector("main[data-now]");
  return made ? Date.parse(made.dataset.now) - madeAt : 0;
};
let madeAt = Date.now();
let offset = clockOffset();

const showAges = () => {
  const now = Date.now() + offset;
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const text = ageOf((now - Date.parse(time.dateTime)) / 1000);
    if (time.textContent !== text) time.textContent = text;
  }
};
setInterval(showAges, 1000);

// ------------------------------------------------------------------------------------- pages that live

// Make `old` equal to `fresh`, keeping what the reader has opened, typed and focused.
const sameNode = (old, fresh) =>
  old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && (old.id || "") === (fresh.id || "");

const isInUse = (element) =>
  element.hasAttribute("data-own") || element.hasAttribute("data-sent") ||
  (element.hasAttribute("data-keep") && (element.open || element.contains(document.activeElement)));

const morph = (old, fresh) => {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE || isInUse(old)) return;
  for (const name of old.getAttributeNames()) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const name of fresh.getAttributeNames()) {
    if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
  }
  if (old.matches("input, select, textarea")) return;
  if (old.matches("time[data-ago]")) return;
  const kept = new Map();
  for (const child of old.children) if (child.id) kept.set(child.id, child);
  const isOwn = (node) => node.nodeType === Node.ELEMENT_NODE && node.hasAttribute("data-own");
  // What is the page's own stands for nothing else of the fresh one, such as a message that it has no more.
  const isPassedOver = (node, next) =>
    (isOwn(node) && !isOwn(next)) ||
    (node.nodeType === Node.TEXT_NODE && !node.data.trim() && next.nodeType === Node.ELEMENT_NODE);
  let place = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    while (place && isPassedOver(place, next)) place = place.nextSibling;
    const known = next.id ? kept.get(next.id) : undefined;
    if (known && known !== place) old.insertBefore(known, place);
    if (known) {
      place = known.nextSibling;
      morph(known, next);
    } else if (place && !(place.id && place.nodeType === Node.ELEMENT_NODE) && sameNode(place, next)) {
      const current = place;
      place = place.nextSibling;
      morph(current, next);
    } else {
      old.insertBefore(next, place);
    }
  }
  while (place) {
    const rest = place;
    place = place.nextSibling;
    if (rest.nodeType !== Node.ELEMENT_NODE || !isInUse(rest)) rest.remove();
  }
};

const status = document.getElementById("live-status");
const say = (text, tone) => {
  if (!status) return;
  status.textContent = text;
  status.className = `state ${tone}`;
};

const ANSWER_MS = 10_000;
const PAUSE_S = 1;
const PAUSE_MAX_S = 30;

// What was typed is not lost with the session: the form that is sent leads to the sign-in, and back.
const isTyped = (field) =>
  field.type === "hidden" ? false
  : "checked" in field && field.checked !== field.defaultChecked ? true
  : field.matches("select") ? [...field.options].some((each) => each.selected !== each.defaultSelected && each.selected)
  : field.value !== field.defaultValue;

const signedOut = () => {
  if (![...document.querySelectorAll("main input, main textarea, main select")].some(isTyped)) {
    location.reload();
    return;
  }
  stopped = true;
  say("signed out", "warn");
};

let refreshing = false;
let stopped = false;
// Returns whether nothing remains to be shown: a page that is hidden or not updated is refreshed when it no longer is.
const refresh = async () => {
  const main = document.querySelector("main[data-live-s], main[data-events]");
  if (!main || document.hidden || stopped) return true;
  if (refreshing) return false;
  refreshing = true;
  try {
    const signal = AbortSignal.timeout(ANSWER_MS);
    // What stays is shown for as long as the page, so that nothing below it moves.
    const stays = [...main.querySelectorAll("[data-stays]")].map((each) => each.id).join(" ");
    const response = await fetch(location.href, { headers: { "X-Refresh": stays || "1" }, redirect: "error", signal });
    if (response.status === 401) {
      signedOut();
      return true;
    }
    if (!response.ok) throw new Error(String(response.status));
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const fresh = page.querySelector("main");
    madeAt = Date.now();
    morph(document.querySelector(".menu"), page.querySelector(".menu"));
    morph(main, fresh);
    offset = clockOffset();
    showAges();
    say("live", "live");
    return true;
  } catch {
    say("no connection; tries again", "bad");
    return false;
  } finally {
    refreshing = false;
  }
};

// An account's pages are asked for again after its events, at most once a second, and ever more seldom while those
// follow each other, but for what the page itself is about. Each stream, a resumed one too, begins with an event,
// after which nothing is missed; what was changed before that and after the page was made is shown by the first
// refresh.
const EVENT_NAMES = ["task", "order", "account"];
const TOGETHER_MS = 1000;
const TOGETHER_MAX_MS = 16_000;
const TOGETHER_GROWTH = 4;
const QUIET_MS = 2000;

let due = null;
const refreshSoon = (pauseMs) => {
  due ??= setTimeout(async () => {
    due = null;
    if (!(await refresh())) refreshSoon(Math.min(pauseMs * 2, PAUSE_MAX_S * 1000));
  }, pauseMs);
};

let changedAt = 0;
let togetherMs = TOGETHER_MS;
const showChange = (event) => {
  const isOwn = Object.values(JSON.parse(event.data)).includes(location.pathname.split("/").pop());
  if (isOwn || Date.now() - changedAt > QUIET_MS) togetherMs = TOGETHER_MS;
  changedAt = Date.now();
  if (isOwn) due = clearTimeout(due);
  if (due) return;
  refreshSoon(togetherMs);
  togetherMs = Math.min(togetherMs * TOGETHER_GROWTH, TOGETHER_MAX_MS);
};

const followAccount = (path, pauseS) => {
  const source = new EventSource(path);
  for (const name of EVENT_NAMES) source.addEventListener(name, showChange);
  source.onopen = () => { if (!stopped) say("live", "live"); };
  source.onerror = () => {
    if (!stopped) say("no connection; tries again", "bad");
    if (source.readyState !== EventSource.CLOSED) return;
    setTimeout(async () => {
      await refresh();
      if (!stopped) followAccount(path, Math.min(pauseS * 2, PAUSE_MAX_S));
    }, pauseS * 1000);
  };
};

const live = document.querySelector("main[data-live-s], main[data-events]");
if (live) {
  if (live.dataset.liveS) setInterval(refresh, Number(live.dataset.liveS) * 1000);
  else followAccount(live.dataset.events, PAUSE_S);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });
  const toggle = document.getElementById("live-toggle");
  if (toggle) {
    toggle.hidden = false;
    toggle.addEventListener("click", () => {
      stopped = !stopped;
      toggle.setAttribute("aria-pressed", String(stopped));
      toggle.textContent = stopped ? "Update again" : "Stop updates";
      say(stopped ? "not updated" : "live", stopped ? "warn" : "live");
      if (!stopped) refresh();
    });
  }
}

// --------------------------------------------------------------------------------------- reports, live

const LINES_MAX = 500;
const WAITING_MAX = 500;

const followReports = (list) => {
  const template = document.getElementById("report-line");
  const empty = document.getElementById("no-reports");
  const shownStatus = document.getElementById("stream-status");
  const toggle = document.getElementById("stream-toggle");
  const words = document.getElementById("report-text");
  const tones = JSON.parse(list.dataset.tones);
  const levels = [...document.querySelectorAll("#report-filter [name=level] option")].map((each) => each.value);
  const wanted = JSON.parse(list.dataset.filters);
  let waiting = [];
  let isStopped = false;
  let position = list.dataset.position;

  const fits = (report) =>
    ["kind", "key", "member_id", "trace_id", "account_id", "task_id", "provider"].every(
      (name) => !wanted[name] || report[name] === wanted[name]) &&
    (!wanted.path || report.path === wanted.path || report.path.startsWith(`${wanted.path}/`)) &&
    (!wanted.level || levels.indexOf(report.level) >= levels.indexOf(wanted.level));

  const hasWords = (line) => line.textContent.toLowerCase().includes(words.value.trim().toLowerCase());

  const show = (state, tone) => {
    shownStatus.textContent = state;
    shownStatus.className = `state ${tone}`;
  };

  // As the server writes it: without the date if it is today, in UTC.
  const clockOf = (at) =>
    `${at.startsWith(new Date(Date.now() + offset).toISOString().slice(0, 10)) ? "" : `${at.slice(0, 10)} `}${at.slice(11, 19)} UTC`;

  const addressOf = (report) =>
    report.task_id ? `/ops/tasks/${encodeURIComponent(report.task_id)}`
    : report.account_id ? `/ops/accounts/${encodeURIComponent(report.account_id)}`
    : report.key && report.path.split("/").length === 2
      ? `/ops/actors/${report.path.split("/")[1]}/${encodeURIComponent(report.key)}`
    : null;

  const add = (report) => {
    if (report.report_id && document.getElementById(report.report_id)) return;
    const line = template.content.firstElementChild.cloneNode(true);
    line.id = report.report_id;
    const time = line.querySelector("time");
    time.dateTime = report.at;
    time.title = report.at.replace("T", " ").replace("Z", " UTC");
    line.querySelector(".clock").textContent = clockOf(report.at);
    const kind = line.querySelector(".state");
    kind.textContent = report.kind.replaceAll("_", " ");
    kind.classList.add(tones[report.kind] || "idle");
    line.querySelector(".text").textContent = report.text;
    const subject = line.querySelector(".where a");
    subject.textContent = report.path + (report.key ? `:${report.task_id || report.account_id || report.key}` : "");
    const address = addressOf(report);
    if (address) subject.href = address;
    line.querySelector(".origin").textContent =
      (report.provider ? `provider ${report.provider}, ` : "") +
      (report.host ? `on ${report.host}` : "") +
      (report.worker === null ? "" : `, worker ${report.worker}`);
    line.hidden = !hasWords(line);
    list.prepend(line);
    while (list.children.length > LINES_MAX) list.lastElementChild.remove();
    empty.hidden = true;
  };

  const flush = () => {
    waiting.forEach(add);
    waiting = [];
    showAges();
  };

  const receive = (event) => {
    position = event.lastEventId || position;
    const report = JSON.parse(event.data);
    if (!fits(report)) return;
    waiting.push(report);
    if (waiting.length > WAITING_MAX) waiting.shift();
    if (isStopped) toggle.textContent = `Update again (${waiting.length} new)`;
    else flush();
  };

  const showFollowed = () => show(isStopped ? "not updated" : "live", isStopped ? "warn" : "live");

  // A browser connects again by itself when a stream ends, but not after an answer that is none.
  const follow = (pauseS) => {
    const source = new EventSource(list.dataset.stream + (position ? `?after=${position}` : ""));
    source.onopen = () => {
      pauseS = PAUSE_S;
      showFollowed();
    };
    source.onerror = () => {
      show("no connection; tries again", "bad");
      if (source.readyState !== EventSource.CLOSED) return;
      setTimeout(async () => {
        const session = await fetch("/ops/api/session").catch(() => null);
        if (session?.status === 401) location.reload();
        else follow(Math.min(pauseS * 2, PAUSE_MAX_S));
      }, pauseS * 1000);
    };
    for (const kind of Object.keys(tones)) source.addEventListener(kind, receive);
    source.addEventListener("skipped", (event) => show(`${JSON.parse(event.data).count} skipped`, "warn"));
  };
  follow(PAUSE_S);

  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    isStopped = !isStopped;
    toggle.setAttribute("aria-pressed", String(isStopped));
    toggle.textContent = isStopped ? "Update again" : "Stop updates";
    showFollowed();
    if (!isStopped) flush();
  });
  document.getElementById("report-text-label").hidden = false;
  words.addEventListener("input", () => {
    for (const line of list.children) line.hidden = !hasWords(line);
  });
};

const reports = document.querySelector("#reports[data-stream]");
if (reports) followReports(reports);

// ------------------------------------------------------------------------------------------- sign-in

// The cookie is not sent with a link from elsewhere, so who follows one may be signed in nevertheless.
const goOn = document.querySelector("main[data-return-to]");
if (goOn) {
  fetch(location.href, { redirect: "manual" })
    .then((response) => { if (response.type === "opaqueredirect") location.replace(goOn.dataset.returnTo); })
    .catch(() => {});
}

// A button that has to wait, until the time that is shown beside it.
for (const wait of document.querySelectorAll("[data-until]")) {
  const button = document.getElementById(wait.dataset.until);
  const time = wait.querySelector("time");
  const free = () => {
    button.disabled = Date.now() + offset < Date.parse(time.dateTime);
    if (!button.disabled) wait.textContent = "now";
    else setTimeout(free, 500);
  };
  free();
}

// A page that answered a form is found at its own address again.
const answered = document.querySelector("main[data-here]");
if (answered && answered.dataset.here !== location.pathname + location.search) {
  history.replaceState(null, "", answered.dataset.here);
}

// ----------------------------------------------------------------------------------------------- copying

const offerCopies = () => {
  if (!navigator.clipboard) return;
  for (const button of document.querySelectorAll("button.copy[hidden]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.parentElement.querySelector("pre").textContent);
      button.textContent = "Copied";
    });
  }
};
offerCopies();

// -------------------------------------------------------------------------------------------- playground

const TYPING_MS = 350;

const run = document.getElementById("run");
if (run) {
  const token = run.elements.csrf_token.value;
  let asked = 0;
  let timer = null;
  // What was typed last is priced, however late the answers come.
  const price = async () => {
    const number = ++asked;
    const response = await fetch(run.dataset.price, { method: "POST", body: new URLSearchParams(new FormData(run)) });
    if (!response.ok || number !== asked) return;
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("priced");
    const shown = document.getElementById("priced");
    const open = [...shown.querySelectorAll("details")].map((each) => each.open);
    fresh.querySelectorAll("details").forEach((each, index) => { each.open = open[index]; });
    shown.replaceWith(fresh);
    offerCopies();
  };
  const priceSoon = () => {
    clearTimeout(timer);
    timer = setTimeout(price, TYPING_MS);
  };
  run.addEventListener("input", priceSoon);

  for (const drop of run.querySelectorAll(".drop")) {
    const [text, chooser, status] = [drop.querySelector("input"), drop.querySelector("[type=file]"), drop.querySelector("[role=status]")];
    const send = async (file) => {
      status.textContent = `Uploading ${file.name}…`;
      const headers = {
        "Content-Type": file.type || "application/octet-stream",
        "Content-Disposition": `attachment; filename*=UTF-8''${encodeURIComponent(file.name)}`,
        "X-CSRF-Token": token,
      };
      const response = await fetch(run.dataset.files, { method: "POST", headers, body: file });
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const stored = page.querySelector("[data-file]");
      status.textContent = stored ? stored.textContent : page.querySelector("main, body").textContent.trim();
      if (!stored) return;
      text.value = stored.dataset.file;
      priceSoon();
    };
    chooser.hidden = false;
    chooser.addEventListener("change", () => { if (chooser.files[0]) send(chooser.files[0]); });
    drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      drop.classList.remove("over");
      if (event.dataTransfer.files[0]) send(event.dataTransfer.files[0]);
    });
  }
}
