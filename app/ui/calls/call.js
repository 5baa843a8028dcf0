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
export const callLong = (name, ...values) => callUntil(null, name, ...values).catch((error) => {
  if (error.isAway) noteAway();
  throw error;
});

/** Call an endpoint like `call` until `signal` aborts, and leave it to the caller to say that there is no answer. */
export async function callUntil(signal, name, ...values) {
  let answer;
  try {
    answer = await fetch(`gradio_api/run/${name}`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ data: values }),
      signal,
    });
  } catch { /* There is no answer. */ }
  if (!answer || GATEWAY.includes(answer.status)) throw Object.assign(new Error(''), { isAway: true });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(said.error || `The server refused this (${answer.status}).`), { isRefusal: answer.status === 400 });
  return said.data[0];
}
