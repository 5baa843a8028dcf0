// The page's uploads, and those that the fields for pictures are to take.
import { passPictureOn } from './component.js';

const given = new Map(); // by setting, as Gradio describes files

/** Return the picture that the field of a setting is to take, or else the one that it has. */
export function givenPicture(name, current) {
  const picture = given.get(name) ?? current;
  given.delete(name);
  return picture;
}

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

/** Let the field of a setting, by default the start picture's, take a file among the uploads. */
export function handOver(file, name = 'image') {
  given.set(name, file);
  passPictureOn();
}
