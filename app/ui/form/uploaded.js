// The page's uploads, and the one that the picture field is to take.
import { passPictureOn } from './component.js';

let picture = null; // as Gradio describes a file

/** Return the picture that the field is to take. */
export const givenPicture = () => picture;

const root = () => (window.gradio_config?.root || '').replace(/\/$/, '');
const prefix = () => window.gradio_config?.api_prefix ?? '/gradio_api';

/** Upload a file and return Gradio's description of it. */
export async function upload(file) {
  const name = file.name || 'pasted.png';
  const body = new FormData();
  body.append('files', file, name);
  const reply = await fetch(`${root()}${prefix()}/upload`, { method: 'POST', body });
  if (!reply.ok) throw new Error(`The upload was refused (${reply.status}).`);
  const [path] = await reply.json();
  return { ...described(path, name), size: file.size, mime_type: file.type };
}

/** Return a description of a file among the uploads, in Gradio's form. */
export function described(path, name) {
  return { path, url: `${root()}${prefix()}/file=${path}`, orig_name: name, meta: { _type: 'gradio.FileData' } };
}

/** Let the picture field take a file among the uploads. */
export function handOver(file) {
  picture = file;
  passPictureOn();
}
