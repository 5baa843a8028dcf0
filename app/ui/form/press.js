// The presses of the buttons below the form. Each is heard at once. One of Start is kept while the server does not
// answer, also over a reload, and sent until it is answered; its id lets the server start the video only once.
import { call, callUntil } from '../calls/call.js';
import { actOnce } from '../elements.js';
import { expectStage, showStage } from '../live/live.js';
import { editedJob } from './editing.js';
import { judge, refuse, showNotice, whenAnswered } from './notice.js';
import { read, values } from './values.js';

const SLOW = 2000; // milliseconds after which an answer is missed
const AGAIN = 2000; // milliseconds between two attempts
const LIMIT = 20000; // milliseconds for one attempt
const KEPT = 'longtake.press';
const WAITING = '<div class="lt-box lt-waiting" role="status"><b>The server does not answer yet.</b> Your press is kept: '
  + 'the video starts as soon as the server answers, and only once. Keep this tab open.<p class="lt-answers">'
  + '<button type="button" class="lt-withdraw" data-answer="no">Do not start it</button></p></div>';

let pending = null; // the press of Start that is not answered: { id, settings, mayDownload }

const find = (selector) => document.querySelector(selector);
const pause = () => new Promise((done) => { setTimeout(done, AGAIN); });
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
  const own = pending;
  const isWanted = () => pending === own;
  const missed = setTimeout(() => { if (isWanted()) showNotice(WAITING); }, SLOW);
  let show = await attempt(own);
  while (isWanted() && !show) {
    showNotice(WAITING);
    await pause();
    if (isWanted()) show = await attempt(own);
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
  showNotice('');
  judge();
  pending = { id: newId(), settings: values(), mayDownload };
  keep();
  expectStage();
  deliver();
}

/** Send the press that a page kept before it was reloaded, with the pictures that were put back. */
export function resume() {
  try {
    pending ??= JSON.parse(sessionStorage.getItem(KEPT));
  } catch { /* The browser keeps nothing. */ }
  if (!pending) return;
  for (const [name, value] of Object.entries(pending.settings)) if (value?.path) pending.settings[name] = read(name) ?? value;
  keep();
  expectStage();
  deliver();
}

const ask = (button, name, ...given) => actOnce(button, async () => showNotice(await call(name, ...given)), refuse);

/** Act on a press of a button below the form. */
export function press(button) {
  if (button.id === 'end') ask(button, 'form_end');
  else if (button.id === 'start') begin();
  else {
    showNotice('');
    judge();
    ask(button, 'form_save', editedJob(), values());
  }
}

whenAnswered((answer) => {
  if (answer === 'yes') begin(true);
  else if (pending) {
    pending = null;
    keep();
  }
});
