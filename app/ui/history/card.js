// A card of the history: a still that plays its video while a user points at it, and facts about the video.
import { make, onPress, reducedMotion, setText } from '../elements.js';
import { call } from '../calls/call.js';
import { when } from '../text.js';

const PAUSE = 120; // milliseconds, so that a pointer on its way to another card loads nothing
let playing = null; // the card whose video plays

/** Return the line beneath a card's prompt. */
const factsOf = ({ created, seed, model }) => `${when(created)} · seed ${seed} · ${model}`;

/** Return the length of what was made of a video, as text; empty if nothing was. */
export const lengthOf = ({ seconds }) => (seconds ? `${seconds.toFixed(2)} s` : '');

/** One card. Its element is an item of a list. */
export class Card {
  element = make('li', { className: 'lt-video-card' });
  data = null;
  #link = make('a', {});
  #frame = make('span', { className: 'lt-frame' });
  #still = make('img', { alt: '', loading: 'lazy', decoding: 'async' });
  #length = make('span', { className: 'lt-video-card-length' });
  #state = make('span', { className: 'lt-video-card-state' });
  #words = make('span', { className: 'lt-video-card-words' });
  #facts = make('span', { className: 'lt-video-card-facts' });
  #star = make('button', { type: 'button', className: 'lt-star' });
  #video = null;
  #soon = 0;

  /** `onError` is called with the text of an error. */
  constructor(data, onError = () => {}) {
    this.#still.addEventListener('load', ({ target }) => this.#frame.style.setProperty('--shape', target.naturalWidth / target.naturalHeight));
    this.#frame.append(this.#still, this.#state, this.#length);
    this.#link.append(this.#frame, this.#words, this.#facts);
    this.element.append(this.#link, this.#star);
    onPress(this.#star, async () => this.show(await setFavourite(this.data)), onError);
    this.#listen();
    this.show(data);
  }

  /** Show newer facts of the same video. */
  show(data) {
    this.data = data;
    this.element.dataset.job = data.job;
    this.element.dataset.state = data.state;
    this.#link.href = `#history/${encodeURIComponent(data.job)}`;
    this.#still.hidden = !data.still;
    if (data.still && this.#still.getAttribute('src') !== data.still) this.#still.src = data.still;
    setText(this.#length, lengthOf(data));
    setText(this.#state, data.sentence);
    setText(this.#words, data.words || 'No prompt');
    setText(this.#facts, factsOf(data));
    showStar(this.#star, data.favourite, data.words);
  }

  focus() {
    this.#link.focus();
  }

  #listen() {
    const link = this.#link;
    link.addEventListener('pointerenter', (event) => { if (event.pointerType === 'mouse') this.#playSoon(); });
    link.addEventListener('pointerleave', (event) => { if (event.pointerType === 'mouse') this.stop(); });
    link.addEventListener('focus', () => { if (link.matches(':focus-visible')) this.#playSoon(); });
    link.addEventListener('blur', () => this.stop());
    // The first touch of the picture plays the video, and the next one opens it.
    link.addEventListener('click', (event) => {
      const isTouch = event.pointerType === 'touch' && this.#frame.contains(event.target);
      if (!isTouch || this.#video || !this.data.video) {
        this.stop();
        return;
      }
      event.preventDefault();
      this.#play();
    });
  }

  #playSoon() {
    if (reducedMotion.matches) return;
    clearTimeout(this.#soon);
    this.#soon = setTimeout(() => this.#play(), PAUSE);
  }

  #play() {
    if (this.#video || !this.data.video) return;
    playing?.stop();
    playing = this;
    const video = make('video', { muted: true, loop: true, playsInline: true, src: this.data.video });
    video.setAttribute('aria-hidden', 'true');
    video.addEventListener('playing', () => { this.element.dataset.playing = 'true'; });
    this.#video = video;
    this.#still.after(video);
    video.play().catch(() => this.stop());
  }

  /** Show the still again. */
  stop() {
    clearTimeout(this.#soon);
    if (playing === this) playing = null;
    delete this.element.dataset.playing;
    if (!this.#video) return;
    this.#video.removeAttribute('src');
    this.#video.load(); // lets the browser drop what it has loaded
    this.#video.remove();
    this.#video = null;
  }
}

/** Mark a video as a favourite, or remove the mark. Return its data with the mark as it is now. */
export async function setFavourite(video) {
  const [{ favourite }] = await call('jobs_favourite', [video.job], !video.favourite);
  return { ...video, favourite };
}

/** Show on a button whether a video is a favourite. One with a place for the star has words of its own. */
export function showStar(button, favourite, words) {
  button.setAttribute('aria-pressed', String(favourite));
  const place = button.querySelector('span');
  if (!place) button.setAttribute('aria-label', `Favourite: ${words.slice(0, 60) || 'no prompt'}`);
  setText(place ?? button, favourite ? '★' : '☆');
}
