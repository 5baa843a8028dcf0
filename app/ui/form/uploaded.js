// The page's uploads.
import { request } from '../calls/call.js';

/** Return the address of a file among the uploads, relative to the page. */
export const addressOf = (path) => `gradio_api/file=${path}`;

/** Upload a file and return its path and its name. */
export async function upload(file) {
  const name = file.name || 'pasted.png';
  const body = new FormData();
  body.append('files', file, name);
  const reply = await request('gradio_api/upload', { method: 'POST', body });
  if (!reply.ok) throw new Error(`The upload was refused (${reply.status}).`);
  const [path] = await reply.json();
  return { path, orig_name: name };
}
