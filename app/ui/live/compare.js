// The dialog in which two videos play in step under one slider, and a user keeps one of them.
import { dropVideo, onPress, reducedMotion, setOptions, setText } from '../elements.js';

const OFF = 0.07; // seconds by which the right video may be off before it is put right

const dialog = document.querySelector('#compare');
const find = (name) => dialog.querySelector(`.lt-compare-${name}`);
const [split, seek, play] = ['split', 'seek', 'play'].map(find);
const videos = [...dialog.querySelectorAll('video')];
const [left, right] = videos;
const selects = [...dialog.querySelectorAll('select')];
const keeps = [...dialog.querySelectorAll('.lt-compare-keep')];
let entries = [];

const entry = (side) => entries[selects[side].value];
const length = () => Math.max(0.1, (entry(0).end ?? left.duration) - entry(0).begin || 0.1);
const at = () => left.currentTime - entry(0).begin;
const report = (words) => setText(find('say'), words);
const start = () => left.play().catch(() => {});

function showTime() {
  seek.max = length();
  seek.value = at();
  seek.setAttribute('aria-valuetext', `${at().toFixed(1)} of ${length().toFixed(1)} seconds`);
  setText(play, left.paused ? 'Play' : 'Pause');
}

/** Bring the right video to the left one's time, and to its rest or play. */
function follow() {
  if (!dialog.open) return;
  const time = Math.min(entry(1).begin + at(), right.duration || 0);
  if (Math.abs(right.currentTime - time) > (left.paused ? 0.001 : OFF) && !right.seeking) right.currentTime = time;
  if (left.paused) right.pause();
  else if (right.paused && time < right.duration - OFF) right.play().catch(() => {});
  showTime();
}

function jump(time) {
  left.currentTime = entry(0).begin + time;
  follow();
}

function startAgain() {
  jump(0);
  start();
}

function step() {
  if (!dialog.open) return;
  if (at() >= length()) startAgain();
  else follow();
  left.requestVideoFrameCallback(step);
}

function showSplit() {
  dialog.style.setProperty('--split', `${split.value}%`);
  split.setAttribute('aria-valuetext', `${split.value} % left, ${100 - split.value} % right`);
}

function load() {
  videos.forEach((video, side) => {
    const { url, name, keep } = entry(side);
    if (video.getAttribute('src') !== url) video.src = url;
    video.ariaLabel = name;
    keeps[side].hidden = !keep;
    setText(keeps[side], keep ?? '');
  });
}

/**
 * Compare two of these videos, each with a `name`, a `url`, the second in it from which they correspond, `begin`, perhaps an
 * `end`, and what keeps it: the words of a button, `keep`, and `act`, which is called with the other one.
 */
export function compare(all, [first, second] = [0, 1]) {
  entries = all;
  selects.forEach((select, side) => {
    setOptions(select, entries.map(({ name }, index) => [index, name]));
    select.value = side ? second : first;
  });
  report('');
  split.value = 50;
  showSplit();
  dialog.showModal();
  load();
  left.requestVideoFrameCallback(step);
}

export default function startCompare() {
  split.addEventListener('input', showSplit);
  seek.addEventListener('input', () => jump(Number(seek.value)));
  play.addEventListener('click', () => {
    if (left.paused) start();
    else left.pause();
    follow();
  });
  for (const select of selects) select.addEventListener('change', load);
  left.addEventListener('loadeddata', () => {
    dialog.style.setProperty('--ratio', left.videoWidth / left.videoHeight);
    jump(0);
    if (!reducedMotion.matches) start();
  });
  right.addEventListener('loadeddata', follow);
  for (const event of ['play', 'pause', 'seeked']) left.addEventListener(event, follow);
  left.addEventListener('ended', startAgain);
  keeps.forEach((button, side) => onPress(button, async () => {
    await entry(side).act(entry(1 - side));
    dialog.close();
  }, report));
  find('close').addEventListener('click', () => dialog.close());
  dialog.addEventListener('close', () => videos.forEach(dropVideo));
}
