// A card of the history: a still that plays its video while a user points at it, and facts about the video.
import { dropVideo, fromTemplate, make, onPress, reducedMotion, setText } from '../elements.js';
import { call } from '../calls/call.js';
import { when } from '../text.js';

const PAUSE = 120; // milliseconds, so that a pointer on its way to another card loads nothing
let playing = null; // the card whose video plays

/** One card. Its element is an item of a list. */
export class Card {
  element = fromTemplate('video-card');
  data = null;
  #link = this.element.querySelector('a');
  #frame = this.element.querySelector('.lt-frame');
  #still = this.element.querySelector('img');
  #star = this.element.querySelector('.lt-star');
  #video = null;
  #soon = 0;

  /** `onError` is called with the text of an error. */
  constructor(onError) {
    this.#still.addEventListener('load', ({ target }) => this.#frame.style.setProperty('--shape', target.naturalWidth / target.naturalHeight));
    onPress(this.#star, async () => this.show(await setFavourite(this.data)), onError);
    this.#listen();
  }

  /** Show newer facts of the same video. */
  show(data) {
    this.data = data;
    this.element.dataset.job = data.job;
    this.element.dataset.state = data.state;
    this.#link.href = `#history/${encodeURIComponent(data.job)}`;
    this.#still.hidden = !data.still;
    if (data.still && this.#still.getAttribute('src') !== data.still) this.#still.src = data.still;
    const { length, sentence: state, words, created, seed, model } = data;
    const texts = { length, state, words: words || 'No prompt', facts: `${when(created)} · seed ${seed} · ${model}` };
    for (const [name, text] of Object.entries(texts)) setText(this.element.querySelector(`.lt-video-card-${name}`), text);
    showStar(this.#star, data.favourite, words);
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
    const video = make('video', { muted: true, loop: true, playsInline: true, ariaHidden: 'true', src: this.data.video });
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
    dropVideo(this.#video);
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
