// The recipe inside a file that a user hands in: an MP4 or a PNG of Longtake, or a JSON file with settings.
import { call } from '../calls/call.js';
import { upload } from './uploaded.js';

const HEAD = 16; // bytes of a box's length and kind, and of the length of a large one
const MOST_BOXES = 1000;
const PNG = [0x89, 0x50, 0x4e, 0x47];
const PNG_RECIPE = 'iTXtLongtake recipe\0';
const JSON_NAME = /\.json$/i;

const bytesOf = async (blob) => new DataView(await blob.arrayBuffer());
const kindAt = (bytes, at) => String.fromCharCode(...new Uint8Array(bytes.buffer, at, 4));

/** Return the file without its pictures and sound, which may be large and contain no settings. */
async function withoutMedia(file) {
  const parts = [];
  for (let at = 0, count = 0; at + 8 <= file.size && count < MOST_BOXES; count += 1) {
    const head = await bytesOf(file.slice(at, at + HEAD));
    let length = head.getUint32(0);
    if (length === 1 && head.byteLength === HEAD) length = Number(head.getBigUint64(8));
    length ||= file.size - at; // 0 stands for the rest
    if (length < 8) break; // the file is damaged, which the server reports
    if (kindAt(head, 4) !== 'mdat') parts.push(file.slice(at, at + length));
    at += length;
  }
  return new File(parts, file.name, { type: file.type });
}

async function isPngWithRecipe(file) {
  return new TextDecoder('latin1').decode(await file.arrayBuffer()).includes(PNG_RECIPE);
}

/** Return the part of a file that may carry a recipe; null for a file that is just a picture. */
async function carrierOf(file) {
  if (JSON_NAME.test(file.name) || file.type === 'application/json') return file;
  if (file.size < HEAD) return null;
  const head = await bytesOf(file.slice(0, HEAD));
  if (PNG.every((byte, index) => head.getUint8(index) === byte)) return (await isPngWithRecipe(file)) ? file : null;
  const isVideo = file.type.startsWith('video/') || /\.mp4$/i.test(file.name);
  return isVideo ? withoutMedia(file) : null;
}

/** Upload the part of a file that may carry settings, and return its description; null for a picture. */
export async function uploadRecipe(file) {
  const carrier = await carrierOf(file);
  return carrier && upload(carrier);
}

/** Return the endpoint's answer about the settings in a file, or null for a file that is just a picture. */
export async function recipeOf(file) {
  const { path } = (await uploadRecipe(file)) ?? {};
  const name = file.name || 'the file';
  if (!path) return null;
  return call('recipe_read', { path }, name).catch(async (error) => {
    if (!file.type.startsWith('video/')) throw error;
    return call('video_continue', { path: (await upload(file)).path }, name); // a video from elsewhere
  });
}
