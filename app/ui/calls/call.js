// The page's calls to the named endpoints, which programs call by the same names.

const AWAY = 'The server does not answer. This page reconnects by itself; then try again.';
const GATEWAY = [502, 503, 504]; // statuses with which a proxy answers for a server that is away

/** Call an endpoint with all of its arguments in order, and return its answer; a refusal is an Error with a sentence. */
export const call = (name, ...values) => callUntil(null, name, ...values);

/** Call an endpoint like `call`, until `signal` aborts. The error of a server that does not answer has `isAway`. */
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
  if (!answer || GATEWAY.includes(answer.status)) throw Object.assign(new Error(AWAY), { isAway: true });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(said.error || `The server refused this (${answer.status}).`), { isRefusal: answer.status === 400 });
  return said.data[0];
}
