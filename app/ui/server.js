// The page's calls of the server, its uploads, and the line that says what is wrong with the connection.
import { setText } from './elements.js';

const GATEWAY = [502, 503, 504]; // statuses with which a proxy answers for a server that is away
const LATE_AFTER = 1500; // milliseconds
const LEGIBLE = 4000; // milliseconds for which a sentence stays at least
const PRESSED = 'Once the server answers, this page shows what your press has done; if nothing, press again.';

let lost = ''; // what follows if the stream of updates is lost
let away = 0; // when a call had no answer; 0 if updates have come since
const late = new Set(); // the answers that are late

function show() {
  const gone = (lost && 'Connection lost.') || (away && 'The server does not answer.') || (late.size && 'Still waiting for the server…');
  const rest = (away && PRESSED) || lost;
  setText(document.querySelector('.lt-lost'), `${gone || ''} ${gone ? rest : ''}`.trim());
}

export function sayLost(words) {
  lost = words;
  show();
}

export function noteBack() {
  if (performance.now() - away < LEGIBLE) return;
  away = 0;
  show();
}

// The line says so if the answer is late.
async function waitFor(answer) {
  const timer = setTimeout(() => {
    late.add(answer);
    show();
  }, LATE_AFTER);
  try {
    return await answer;
  } finally {
    clearTimeout(timer);
    if (late.delete(answer)) show();
  }
}

/**
 * Call the server by the name of the call, once, and return its answer. A refusal is an Error with a sentence, the `status`,
 * and the `setting` that it concerns. The error of a server that does not answer has `isAway` and no sentence, since the line
 * about the connection has it.
 */
export const post = (name, message = {}) => waitFor(postLong(name, message));

export const postLong = (name, message) => missed(postUntil(null, name, message));

/** Call the server until `signal` aborts, and leave it to the caller to say that there is no answer. */
export async function postUntil(signal, name, message) {
  const reply = await send(name, message, signal);
  const text = await reply.text().catch(() => { throw noAnswer(); }); // it broke off
  if (reply.ok) return JSON.parse(text);
  throw refusalOf(reply, text);
}

const send = (name, message, signal) => ask(`api/${name}`, {
  method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(message), signal,
});

/** Send a message until `signal` aborts, and yield the objects that the server answers with, one on each line. */
export async function* linesOf(signal, name, message) {
  const reply = await waitFor(missed(send(name, message, signal)));
  if (!reply.ok) throw refusalOf(reply, await reply.text());
  let rest = '';
  for await (const part of reply.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + part).split('\n');
    rest = lines.pop();
    yield* lines.map((line) => JSON.parse(line));
  }
}

function refusalOf(reply, text) {
  const refusal = reply.headers.get('Content-Type') === 'application/json' ? JSON.parse(text) : {};
  const words = [refusal.message, refusal.remedy].filter(Boolean).join(' ');
  return Object.assign(new Error(words || `The server refused this (${reply.status}).`), { status: reply.status, setting: refusal.setting });
}

const noAnswer = () => Object.assign(new Error(''), { isAway: true });

async function ask(address, options) {
  const answer = await fetch(address, options).catch(() => null);
  if (!answer || GATEWAY.includes(answer.status)) throw noAnswer();
  return answer;
}

const missed = (answer) => answer.catch((error) => {
  if (error.isAway) away = performance.now();
  show();
  throw error;
});

export const addressOf = (path) => `gradio_api/file=${path.split('/').map(encodeURIComponent).join('/')}`;

export async function upload(file) {
  const name = file.name || 'pasted.png';
  // Sending what cannot be read, such as a folder, would look like a server that is away.
  await file.slice(0, 1).arrayBuffer().catch(() => { throw new Error(`${name} cannot be read. Drop files, and no folder.`); });
  const body = new FormData();
  body.append('files', file, name);
  const reply = await waitFor(missed(ask('gradio_api/upload', { method: 'POST', body })));
  if (!reply.ok) throw new Error(await reply.text());
  const [path] = await reply.json();
  return { path, orig_name: name };
}
