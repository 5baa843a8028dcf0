// The page's calls to the named endpoints, which programs call by the same names.
import { noteAway, waitFor } from './connection.js';

const GATEWAY = [502, 503, 504]; // statuses with which a proxy answers for a server that is away

/**
 * Call an endpoint with all of its arguments in order, and return its answer; a refusal is an Error with a sentence.
 * A call is sent once. The error of a server that does not answer has `isAway` and no sentence, since the line about
 * the connection has it.
 */
export const call = (name, ...values) => waitFor(callLong(name, ...values));

/** Call an endpoint like `call` that may take long, as the caller says. */
export const callLong = (name, ...values) => missed(callUntil(null, name, ...values));

/** Return the server's reply to a request other than a call, with the errors and the line of `call`. */
export const request = (address, options) => waitFor(missed(ask(address, options)));

/** Call an endpoint like `call` until `signal` aborts, and leave it to the caller to say that there is no answer. */
export async function callUntil(signal, name, ...values) {
  const headers = { 'Content-Type': 'application/json' };
  const answer = await ask(`gradio_api/run/${name}`, { method: 'POST', headers, body: JSON.stringify({ data: values }), signal });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(said.error || `The server refused this (${answer.status}).`), { isRefusal: answer.status === 400 });
  if (!said.data) throw away();
  return said.data[0];
}

const away = () => Object.assign(new Error(''), { isAway: true });

async function ask(address, options) {
  const answer = await fetch(address, options).catch(() => null);
  if (!answer || GATEWAY.includes(answer.status)) throw away();
  return answer;
}

const missed = (answer) => answer.catch((error) => {
  if (error.isAway) noteAway();
  throw error;
});
