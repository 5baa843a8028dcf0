"""The page's scripts over the real document without a server, whose part a test plays.

A test answers the requests of the scripts itself, in any order, and lets the time of videos pass.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from app.jobs.service import JobService
from app.ui import scripts
from app.ui.catalogue import Catalogue
from app.ui.page import build_page
from tests.support.jobs import TIMEOUT

SITE = "http://page.test/"
# `calls` are the requests so far, each with `answer`, `refuse` and `lose`; `load` imports one of the scripts.
HARNESS = """
window.calls = [];
window.streams = [];
window.fetch = (address, { body = '{}' } = {}) => new Promise((resolve, reject) => {
  const call = {
    address, path: String(address).replace(/^api[/]/, ''), isOver: false,
    sent: body instanceof FormData ? body.get('files').name : JSON.parse(body),
    reply: (value, status) => {
      call.isOver = true;
      resolve(new Response(JSON.stringify(value),
          { status, headers: { 'Content-Type': 'application/json' } }));
    },
    answer: (value) => call.reply(value, 200),
    refuse: (message) => call.reply({ message }, 409),
    lose: () => {
      call.isOver = true;
      reject(new TypeError('away'));
    },
  };
  calls.push(call);
});
window.EventSource = class {
  constructor(address) { Object.assign(this, { address, readyState: 1 }); streams.push(this); }
  close() { this.readyState = 2; }
};
window.EventSource.CLOSED = 2;
window.load = (name) => import(`/SCRIPTS/${name}`);
window.settle = () => new Promise((done) => { setTimeout(() => requestAnimationFrame(done), 20); });
window.named = (path) => calls.filter((call) => call.path.split('?')[0] === path);
window.textOf = (selector) => document.querySelector(selector).textContent;
window.queued = (...names) => ({
  total: names.length, first: 0, held: false, say: names.join(), cards: [], left: null,
  jobs: names.map((id) => ({
    id, title: id, about: '', now: 'Waiting', time: '', percent: 0, state: 'queued', picture: '',
    actions: ['reorder'], buttons: { shown: [['remove', 'Remove']], more: [] },
  })),
});
window.press = (key, more = {}, target = document.activeElement) => {
  const event = new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true, ...more });
  target.dispatchEvent(event);
  return event.defaultPrevented;
};
// Gives a video files of these lengths, by their addresses, and frames that come at once.
window.film = (video, lengths) => {
  let [src, from, began] = ['', 0, null];
  const say = (name) => setTimeout(() => video.dispatchEvent(new Event(name)));
  const length = () => lengths[src] ?? NaN;
  const at = () => Math.min(length() || 0, from + (began === null ? 0 : (performance.now() - began) / 1000));
  Object.defineProperties(video, {
    src: { get: () => src, set: (url) => { [src, from, began] = [url, 0, null]; } },
    duration: { get: length }, readyState: { get: () => 4 }, paused: { get: () => began === null },
    ended: { get: () => !video.loop && at() >= length() },
    currentTime: { get: at, set: (to) => { from = to; began &&= performance.now(); say('seeked'); } },
  });
  const own = (act) => HTMLElement.prototype[act].bind(video);
  video.removeAttribute = (name) => (name === 'src' ? (src = '') : own('removeAttribute')(name));
  video.getAttribute = (name) => (name === 'src' ? src || null : own('getAttribute')(name));
  video.load = () => { if (src && src !== 'never') say(src in lengths ? 'loadeddata' : 'error'); };
  video.play = async () => { [from, began] = [at(), performance.now()]; say('play'); };
  video.pause = () => { [from, began] = [at(), null]; say('pause'); };
  video.requestVideoFrameCallback = () => {};
};
// Holds the timers of `least` milliseconds or more; the result lets so many milliseconds pass for them.
window.holdTimers = (least = 1000) => {
  const [set, clear, held] = [setTimeout.bind(window), clearTimeout.bind(window), new Map()];
  let [now, last] = [0, 0];
  window.setTimeout = (act, time = 0, ...more) => {
    if (time < least) return set(act, time, ...more);
    held.set(last -= 1, [now + time, () => act(...more)]);
    return last;
  };
  window.clearTimeout = (id) => held.delete(id) || clear(id);
  return async (time) => {
    now += time;
    for (const [id, [due, act]] of [...held]) if (due <= now && held.delete(id)) act();
    await settle();
  };
};
// What the server says of a form, with which `openForm` starts the form's script.
window.facts = {
  unused: [], crops: {}, program: '', size: '', many: '', model: '', starts: '', words: [], offered: [],
  defaults: {},
  loras: { text: '', weights: {} }, ratio: 1.5,
};
window.find = (selector) => document.querySelector(selector);
// The last call of this name that has no answer, also if it is yet to come.
window.pending = async (path) => {
  const open = () => named(path).findLast(({ isOver }) => !isOver);
  for (let n = 0; n < 100 && !open(); n += 1) await settle();
  return open();
};
window.answer = async (path, value) => {
  const call = await pending(path);
  call.answer(value);
  await settle();
  return call.sent;
};
window.openForm = async (more = {}) => {
  const script = await load('form/form.js');
  script.default();
  await settle();
  await answer('form_restore', { facts: { ...facts, ...more } });
  await answer('form_describe', {});
  return load('form/describe.js');
};
window.say = async (more) => {
  const { take } = await load('form/describe.js');
  take({ facts: { ...facts, ...more } });
  await settle();
};
window.enter = (selector, value, name = 'input') => {
  const field = find(selector);
  field.value = value;
  field.dispatchEvent(new Event(name, { bubbles: true }));
};
window.kept = (name) => JSON.parse(localStorage[`longtake.${name}`] ?? null);
window.transferOf = (...files) => {
  const transfer = new DataTransfer();
  for (const [name, type = ''] of files) transfer.items.add(new File(['x'], name, { type }));
  return transfer;
};
window.drop = async (target, ...files) => {
  const dropped = new DragEvent('drop',
      { bubbles: true, cancelable: true, dataTransfer: transferOf(...files) });
  find(target).dispatchEvent(dropped);
  await settle();
};
window.uploaded = async (...paths) => {
  for (const path of paths) await answer('gradio_api/upload', [path]);
};
window.rows = () => [...document.querySelectorAll('.lt-row')].map((row) => row.dataset.job).join('');
"""


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> str:
    service = JobService(tmp_path_factory.mktemp("races") / "outputs")
    made = build_page(service, Catalogue()).document
    assert "page.js" in made
    return made.replace("page.js", "elements.js")


@pytest.fixture
def page(browser: Any, document: str) -> Iterator[Any]:
    with scripted_page(browser, document) as page:
        yield page


@contextlib.contextmanager
def scripted_page(browser: Any, document: str, **options: Any) -> Iterator[Any]:
    """Open a document in a fresh tab; fail at the end if a script has failed."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, **options)
    context.set_default_timeout(TIMEOUT * 1000)

    def serve(route: Any) -> None:
        name = route.request.url.removeprefix(SITE)
        if not name:
            route.fulfill(body=document, content_type="text/html")
        elif file := scripts.content(name.removeprefix(f"{scripts.ROUTE}/")):
            route.fulfill(body=file[0], content_type=file[1])
        else:
            route.fulfill(status=404)

    context.route(f"{SITE}**", serve)
    context.add_init_script(HARNESS.replace("SCRIPTS", scripts.folder()))
    page = context.new_page()
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto(SITE)
    yield page
    context.close()
    assert not failed, failed
