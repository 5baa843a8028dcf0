// The presses of the buttons below the form. Each is heard at once. One of Start is kept while the server does not
// answer, also over a reload, and sent until it is answered; its id lets the server start the video only once.
import { callUntil } from '../calls/call.js';
import { expectStage, showStage } from '../live/live.js';
import { editedJob } from './editing.js';
import { judge, refuse, seeSettings, showNotice, whenAnswered } from './notice.js';

const SLOW = 2000; // milliseconds after which an answer is missed
const AGAIN = 2000; // milliseconds between two attempts
const LIMIT = 20000; // milliseconds for one attempt
const DEAD = 300; // milliseconds in which Gradio reports a press; it reports none after it has lost the server
const KEPT = 'longtake.press';
const WAITING = '<div class="lt-box lt-waiting" role="status"><b>The server does not answer yet.</b> Your press is kept: '
  + 'the video starts as soon as the server answers, and only once. Keep this tab open.<p class="lt-answers">'
  + '<button type="button" class="lt-withdraw" data-answer="no">Do not start it</button></p></div>';

let pending = null; // the press of Start that is not answered: { id, settings, mayDownload }
let reported = 0; // the number of presses that Gradio has reported

const find = (selector) => document.querySelector(selector);
const pause = () => new Promise((done) => { setTimeout(done, AGAIN); });
const isUpload = (value) => Boolean(value?.path);
const plain = (value) => (isUpload(value) ? { path: value.path, orig_name: value.orig_name } : value);
const newId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, '0')).join('');

function keep() {
  try {
    if (pending) sessionStorage.setItem(KEPT, JSON.stringify(pending));
    else sessionStorage.removeItem(KEPT);
  } catch { /* The browser keeps nothing; the press lasts as long as the page. */ }
  find('#start')?.setAttribute('aria-busy', String(Boolean(pending)));
}

/** Send the press, and return a function that shows the answer, or null if there is none. */
async function attempt({ id, settings, mayDownload }) {
  try {
    const markup = await callUntil(AbortSignal.timeout(LIMIT), 'form_start', id, settings, mayDownload);
    return () => showNotice(markup);
  } catch (error) {
    return error.isAway ? null : () => refuse(error.message);
  }
}

/** Send the press until it is answered or withdrawn. */
async function deliver() {
  const press = pending;
  const isWanted = () => pending === press;
  const missed = setTimeout(() => { if (isWanted()) showNotice(WAITING); }, SLOW);
  let show = await attempt(press);
  while (isWanted() && !show) {
    showNotice(WAITING);
    await pause();
    if (isWanted()) show = await attempt(press);
  }
  clearTimeout(missed);
  if (!isWanted()) return;
  pending = null;
  keep();
  show();
  requestAnimationFrame(() => showStage());
}

function begin(mayDownload = false) {
  if (pending) return;
  const given = judge();
  const settings = Object.fromEntries(Object.entries(given).map(([name, value]) => [name, plain(value)]));
  pending = { id: newId(), settings, mayDownload };
  keep();
  expectStage();
  deliver();
}

/** Start the video of the form's settings. */
export function start(order, ...values) {
  reported += 1;
  seeSettings(order, ...values);
  begin();
}

/** Send the press that a page kept before it was reloaded, with the pictures that were put back, by setting. */
export function resume(pictures) {
  try {
    pending = JSON.parse(sessionStorage.getItem(KEPT));
  } catch { /* Nothing was kept. */ }
  if (!pending) return;
  for (const [name, picture] of Object.entries(pictures)) {
    if (isUpload(pending.settings[name])) pending.settings[name] = plain(picture);
  }
  keep();
  expectStage();
  deliver();
}

async function ask(button, name, ...values) {
  button.setAttribute('aria-busy', 'true');
  const missed = setTimeout(() => refuse('The server does not answer yet.'), SLOW);
  try {
    showNotice(await callUntil(AbortSignal.timeout(LIMIT), name, ...values));
  } catch (error) {
    refuse(error.isAway ? `The server does not answer, so nothing was ${name === 'form_save' ? 'saved' : 'ended'}. Press again once the connection is back.` : error.message);
  } finally {
    clearTimeout(missed);
    button.setAttribute('aria-busy', 'false');
  }
}

/** Save the form's settings in the job that is edited. */
export function save(order, ...values) {
  reported += 1;
  seeSettings(order, ...values);
  const settings = Object.fromEntries(Object.entries(judge()).map(([name, value]) => [name, plain(value)]));
  ask(find('#save'), 'form_save', editedJob(), settings);
}

// What a control shows, for a page whose server Gradio has lost; the value that Gradio reported last if it is closed.
function shown(name, last) {
  const field = find(`#set-${name} :is(textarea, input[type="number"], input[type="radio"]:checked)`);
  if (!field || find(`#set-${name}.lt-model`)) return last;
  return field.type === 'number' ? Number(field.value) : field.value;
}

/** Hear the press of a button below the form. */
export function hear(button) {
  if (button.id === 'end') ask(button, 'form_end');
  else {
    const before = reported;
    if (button.id === 'start') button.setAttribute('aria-busy', 'true');
    setTimeout(() => {
      if (reported !== before) return;
      const given = judge();
      const names = Object.keys(given);
      const values = names.map((name) => shown(name, given[name]));
      (button.id === 'start' ? start : save)(names, ...values);
    }, DEAD);
  }
}

whenAnswered((answer) => {
  if (answer === 'yes') begin(true);
  else if (pending) {
    pending = null;
    keep();
  }
});
