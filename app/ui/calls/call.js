// The page's calls to the named endpoints, which programs call by the same names.

/** Call an endpoint with all of its arguments in order, and return its answer; a refusal is an Error with a sentence. */
export async function call(name, ...values) {
  const root = (window.gradio_config?.root || '').replace(/\/$/, '');
  const prefix = window.gradio_config?.api_prefix ?? '/gradio_api';
  let answer;
  try {
    answer = await fetch(`${root}${prefix}/run/${name}`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ data: values }),
    });
  } catch {
    throw new Error('The server does not answer. This page reconnects by itself; then try again.');
  }
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(said.error || `The server refused this (${answer.status}).`), { isRefusal: answer.status === 400 });
  return said.data[0];
}
